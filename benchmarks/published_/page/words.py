"""What the experiments are, what they mean for a user, and why a contestant is ahead where it is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

_WIDTH = 120

TITLES = {
    "E1": "E1. The table of MNIST, there and back again",
    "E2": "E2. One big list of integers",
    "E3": "E3. Pipe against shared memory, by size",
    "E4": "E4. One request for one array",
    "E5": "E5. Functions in threads and processes",
    "E5 queue": "E5. Objects through a queue",
}

WHAT = {
    "E1": """
A master pickles the table of MNIST (70,000 x 784, float32, 220 MB) and sends it; a slave receives and restores it,
pickles it and sends it back; the master compares. With *base64*, as the source had it on channels that carry text, the
pickle is encoded on top. In stagepipe the master's table is a source, the slave a stage, and the master iterates: the
first row's slave returns what it received, which then need not be copied again, the second one's returns a copy.
""",
    "E2": """
`list(range(n))` from one process to another. *Send* is how long the sender's call takes, *receive* how long the
receiver's; everybody's total begins with the request for the list, which the sender waits for, and ends with the data.
*stagepipe, array* makes an array of the list for each request, as RawArray's sender does; *array ready* made it before.
Who ends with a list is compared with *stagepipe, list*, who ends with an array with *stagepipe, array*.
""",
    "E3": """
`float32` arrays (d, d), 100 of them in each of 10 repetitions: the write-up's Pipe and RawArray, and stagepipe in each
of its modes.
""",
    "E4": """
A client asks another process for an array (float64) and waits until it holds it. *Made*: the server makes the random
numbers upon the request, as published. *Ready*: they were made beforehand, and the request's number is written into the
first element. stagepipe is asked as the others are: its source is a generator that waits for requests. *Made in place*
draws the random numbers into `stagepipe.empty`. CPU and memory are those of *ready*.
""",
    "E5": """
w workers call a function w times altogether. Threads and processes are started for each time, as published; the pool
and stagepipe's stage with `workers: w` are kept, and of stagepipe each time is an epoch.
""",
    "E5 queue": """
A thousand times the same object, from one thread or process to another, which takes them one by one; stagepipe's
producer is a source, and a time is an epoch.
""",
}

MEANS = {
    "E1": """
A large array need be turned neither into text nor into a pickle to reach another process: what lies in shared memory is
only described. Files, pipes and sockets copy it on each side, and pay again for each of pickle and base64.
""",
    "E2": """
A Python list is pickled, whatever way it goes, and that is most of the time. Make an array of it where it comes into
being, and the transport no longer counts.
""",
    "E3": """
Small messages belong into a pipe and large ones into shared memory. `transport: auto` finds where that changes on your
machine.
""",
    "E4": """
With a process for each step, a step's model is held in memory once, and the array between two steps costs what these
tables say. Servers and brokers pay for copies, and JSON for turning numbers into digits and back.
""",
    "E5": """
Threads do not make Python's arithmetic quicker, processes do. Started for a single call they cost milliseconds; a
stage's workers are started once, and what a call costs from then on is a hop.
""",
    "E5 queue": """
Between threads an object is only referred to; between processes it is pickled, and through a queue a large array is
copied several times.
""",
}

_CAUSES = {
    ("E2", ""): """
E2: whoever carries a list pickles all of it. An item of a pipeline is numbered, counted and timed besides: that is 0.1
to 0.2 ms of a lone request, at any size, of which a pipeline that flows sees a tenth.
""",
    ("E2", "RawArray through NumPy"): """
E2, RawArray: its two sides do what stagepipe's do, make an array of the list and copy it, without numbers and clocks:
where making the array takes some milliseconds, those 0.1 to 0.2 ms of a lone request are still seen. It copies twice,
though, stagepipe once, and that counts where the array is larger.
""",
    ("E2", "Array"): """
E2, Array: 32-bit numbers are a seventh of a list's memory, and no pickle. In stagepipe one would send an array, too.
""",
    ("E4", ""): """
E4: what stagepipe adds to a lone request, its numbers, counters and clocks, is some 0.1 ms, which others do not have.
In a pipeline that flows, other items hide it.
""",
    ("E4", "iceoryx2"): """
E4, iceoryx2: it describes what lies in shared memory, as stagepipe does, but from native code, without pickle, keys,
order and timing; and what it lends is good until the next request, while stagepipe's array is the caller's to keep.
Small arrays are 0.1 to 0.2 ms apart, and from run to run now one and now the other is ahead. To be ahead for certain
takes native code.
""",
    ("E4", "memfd over SCM_RIGHTS"): """
E4, memfd: a lone descriptor is as cheap as stagepipe's packet. Each array's pages are touched for the first time,
though, by which it loses where they are many.
""",
    ("E5", "plain"): """
E5, plain: a function as cheap as this is not worth a process. `fuse: true` makes it a call in the process before it.
""",
    ("E5", "threads"): """
E5, threads: a thread is cheaper to start than an epoch with its request, and where the work leaves the interpreter, as
file and network do, threads are enough.
""",
    ("E5", "processes"): """
E5, processes: with as many workers as processors both are as fast as the processors, and a difference is noise. An
epoch brings its results in order, with their times.
""",
    ("E5", "pool, kept"): """
E5, pool: it sends a number there and a number back. An epoch of stagepipe has some 0.5 ms of its own, for its request
to the source and its end, and each item is seeded, counted and timed.
""",
    ("E5 queue", "queue.Queue of threads"): """
E5, queue.Queue: nothing travels; both threads have the same object.
""",
    ("E5 queue", ""): """
E5, queues: an item of a pipeline has a number, a seed, its times and its order, which makes some 15 us on either side.
Below some kilobytes nothing beats a pipe.
""",
}
"""By experiment and contestant; "" is for those that are not named."""


def causes(places: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Why they are ahead, each cause once."""
    found = (
        (experiment, contestant if (experiment, contestant) in _CAUSES else "") for experiment, contestant in places
    )
    for key in dict.fromkeys(found):
        if key in _CAUSES:
            yield paragraph(f"- {_CAUSES[key]}", "  ")


def paragraph(text: str, hanging: str = "") -> str:
    """In lines of the documentation's length."""
    return textwrap.fill(
        " ".join(text.split()), _WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
