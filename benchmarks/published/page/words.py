"""The prose of the page: each experiment, its meaning for a user, and why a contestant is faster than stagepipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

_WIDTH = 120

TITLES = {
    "E1": "E1. A round trip of the MNIST table",
    "E2": "E2. One large list of integers",
    "E3": "E3. Pipe against shared memory, by size",
    "E4": "E4. One request for one array",
    "E5": "E5. Functions in threads and processes",
    "E5 queue": "E5. Objects through a queue",
}

DESCRIPTIONS = {
    "E1": """
A sender pickles the MNIST table (70,000 x 784, float32, 220 MB) and sends it. A responder receives and restores it,
pickles it and sends it back. The sender compares the result. Rows with *base64* also encode the pickle, as the write-up
did on channels that carry text. In stagepipe, the sender's table is a source, the responder is a stage, and the sender
iterates. In the row *stagepipe* the responder returns its input, which needs no second copy; in *stagepipe, responder
copies* it returns a copy.
""",
    "E2": """
`list(range(n))` goes from one process to another. *Send* is the time of the sender's call, *receive* that of the
receiver's. The total runs from the request for the list, which the sender waits for, to the data. *stagepipe, array*
converts the list to an array for each request, as RawArray's sender does; *array ready* converts it beforehand.
Contestants that end with a list are compared with *stagepipe, list*, those that end with an array with *stagepipe,
array*.
""",
    "E3": """
`float32` arrays of shape (d, d), 100 in each of 10 repetitions, through the write-up's Pipe and RawArray, and through
stagepipe in each of its modes.
""",
    "E4": """
A client requests an array (float64) from another process and waits until it has arrived. *Made*: the server creates the
random numbers on request, as published. *Ready*: they exist beforehand, and the number of the request is written into
the first element. stagepipe receives the same requests: its source is a generator that waits for them. *Made in place*
draws the random numbers into an array from `stagepipe.empty`. CPU and memory are those of *ready*.
""",
    "E5": """
w workers call a function w times in total. Threads and processes start for each measurement, as published. The pool and
stagepipe's stage with `workers: w` persist; for stagepipe each measurement is an epoch.
""",
    "E5 queue": """
The same object goes a thousand times from one thread or process to another, which takes them one by one. stagepipe's
producer is a source, and each measurement is an epoch.
""",
}

MEANINGS = {
    "E1": """
A large array needs neither text nor a pickle to reach another process: a message only describes what lies in shared
memory. Files, pipes and sockets copy the array on each side, and pay again for pickle and for base64.
""",
    "E2": """
Almost every mechanism pickles a Python list, and that takes most of the time. Create an array instead of a list at the
source, and the cost of the transport becomes negligible.
""",
    "E3": """
Send small messages through a pipe and large ones through shared memory. `transport: auto` finds the crossover on your
machine.
""",
    "E4": """
With one process per step, each model is in memory once, and passing an array between two steps costs what these tables
show. Servers and brokers pay for copies, and JSON for converting numbers to digits and back.
""",
    "E5": """
Threads do not speed up Python arithmetic; processes do. A process that starts for a single call costs milliseconds. The
workers of a stage start once, and from then on a call costs a hop.
""",
    "E5 queue": """
Threads share a reference to an object. Processes pickle it, and a queue copies a large array several times.
""",
}

_CAUSES = {
    ("E2", ""): """
E2: every mechanism that carries a list pickles all of it. A pipeline also numbers, counts and times each item. That
costs a single request 0.1 to 0.2 ms at any size, and a tenth of that per item in a busy pipeline.
""",
    ("E2", "RawArray through NumPy"): """
E2, RawArray: its two sides do the same work as stagepipe's, converting the list to an array and copying it, but without
numbers and clocks. While the conversion takes only a few milliseconds, the 0.1 to 0.2 ms per single request still show.
RawArray copies twice and stagepipe once, which matters for larger arrays.
""",
    ("E2", "Array"): """
E2, Array: 32-bit numbers take a seventh of the list's memory and need no pickle. With stagepipe, send an array instead.
""",
    ("E4", ""): """
E4: stagepipe's numbers, counters and clocks add about 0.1 ms to a single request, a cost that other mechanisms do not
have. In a busy pipeline, other items hide it.
""",
    ("E4", "iceoryx2"): """
E4, iceoryx2: like stagepipe, it describes what lies in shared memory, but from native code and without pickle, keys,
order and timing. Its loan is valid until the next request, whereas the caller may keep stagepipe's array. Small arrays
are 0.1 to 0.2 ms apart, and the faster one changes from run to run. Being faster reliably would take native code.
""",
    ("E4", "memfd over SCM_RIGHTS"): """
E4, memfd: sending a descriptor is as cheap as stagepipe's packet. But each array's pages are touched for the first
time, which makes memfd slower for large arrays.
""",
    ("E5", "plain"): """
E5, plain: a function this cheap is not worth a process. `fuse: true` makes it a call in the process before it.
""",
    ("E5", "threads"): """
E5, threads: a thread is cheaper to start than an epoch with its request. If the work releases the interpreter, as file
and network access do, threads are enough.
""",
    ("E5", "processes"): """
E5, processes: with as many workers as processors, both run at the speed of the processors, and the difference is noise.
An epoch also delivers its results in order and with their times.
""",
    ("E5", "pool, kept"): """
E5, pool: it sends a number in each direction. An epoch of stagepipe adds about 0.5 ms, for its request to the source
and its end, and it seeds, counts and times each item.
""",
    ("E5 queue", "queue.Queue of threads"): """
E5, queue.Queue: nothing is sent; both threads share the object.
""",
    ("E5 queue", ""): """
E5, queues: an item of a pipeline has a number, a seed, times and an order, which cost about 15 us on either side. Below
a few kilobytes, a pipe is the fastest.
""",
}
"""The causes by experiment and contestant; "" is for all other contestants."""


def causes(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Explain why they are faster, each cause once."""
    keys = ((experiment, contestant if (experiment, contestant) in _CAUSES else "") for experiment, contestant in pairs)
    for key in dict.fromkeys(keys):
        if key in _CAUSES:
            yield paragraph(f"- {_CAUSES[key]}", "  ")


def paragraph(text: str, hanging: str = "") -> str:
    """Wrap to the line length of the documentation."""
    return textwrap.fill(
        " ".join(text.split()), _WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
