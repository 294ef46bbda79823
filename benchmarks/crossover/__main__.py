"""Compare pipe and shared memory by array size, and `auto` with the better of both: experiment E3, complete.

    python -m benchmarks.crossover [--plot FILE.svg|FILE.png] [--json FILE] [--sizes 2,4] [--repetitions 10]

A write-up of 2022 sent float32 arrays (d, d), d = 2, 4 ... 1024, from one process to another, with 100 transfers in
each of 10 repetitions. It found no difference for small arrays, and shared memory ahead for large ones. This benchmark
repeats the experiment with the write-up's two contestants and with stagepipe in each of its modes:

    Pipe                      `multiprocessing.Pipe` carries the array
    RawArray                  `multiprocessing.RawArray` holds the array and a Pipe is the flag; the receiver copies the
                              array out and confirms through the same Pipe, because the next array overwrites it
    stagepipe pipe            a source in its own process, read by the caller, `transport: {mode: pipe}`
    stagepipe shared_memory   the same with `mode: shared_memory`
    stagepipe auto            the same with `mode: auto`, the default

All five contestants of a size run side by side. Their repetitions alternate, in a different order each time. A
repetition lasts from the request (for stagepipe: a new epoch of the same workers) until the last array has arrived; a
second table starts when the first array has arrived. The receiver reads the first element of each array, which holds
its number. Before and after the timing, one repetition of each contestant is compared element by element. The medians
decide which of two contestants is the better one, and the ratio is that of the medians shown; brackets hold the lowest
and the highest quotient of their sign-test intervals. A target is undecided where such an interval straddles its limit.
The receiver has its own processor and all senders share the others: without pinning, the kernel puts one pair of
processes on one processor and the next on two, which alone makes a factor of two (`--unpinned` shows it).

docs/benchmarks.md has the figures, as experiment E3. From 64 KiB up `auto` is ahead of the better peer. Below, Pipe is
ahead, for three reasons. An epoch of stagepipe starts with half a millisecond of work, 5 us for each of its 100 items
here. A pipeline also numbers, counts and times every item. An item that does not fit a packet of 4 KiB takes a block.
RawArray's two sides alternate, and would be faster on a single processor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.common.figures import estimate
from benchmarks.common.machine import machine, machine_line, repeat_command
from benchmarks.common.placing import Placement
from benchmarks.crossover.drawing import draw
from benchmarks.crossover.payload import TRANSFERS
from benchmarks.crossover.rounds import CONTESTANTS, SizeResult, measure
from benchmarks.crossover.verdict import lines, table, targets

SIZES = tuple(2**power for power in range(1, 11))
REPETITIONS = 10
_PLOT_SUFFIXES = (".svg", ".png")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the plot and the JSON if requested."""
    options = _options(arguments)
    multiprocessing.set_forkserver_preload(["benchmarks.crossover.peers"])
    machine_found, begin = machine(), time.monotonic()
    placement = Placement(pinned=not options.unpinned)
    command = repeat_command("crossover")
    print(
        machine_line(machine_found),
        f"{_describe(options.repetitions)} {placement.description}",
        f"Repeat: {command}\n",
        sep="\n",
        flush=True,
    )
    results: list[SizeResult] = []
    for d in options.sizes:
        results.append(measure(d, options.only, options.repetitions, placement, options.corrupt))
        _progress(d, options.sizes)
    rows = [row for result in results for row in result.rows]
    by_size, steady = lines(rows), lines(rows, steady=True)
    verdicts = list(targets(by_size, len(options.sizes)))
    print("From the request:", *table(by_size), sep="\n")
    print("\nFrom the first array:", *table(steady), sep="\n")
    print("\nTargets, measured from the request:", *(target.line() for target in verdicts), sep="\n")
    print(f"{time.monotonic() - begin:.0f} s; load average {machine()['load_average']:.1f} at the end")
    if options.plot:
        draw(rows, options.plot, machine_line(machine_found))
    if options.json:
        document = {
            "command": command,
            "machine": machine_found,
            "pinned": placement.pinned,
            "transfers": TRANSFERS,
            "rows": [asdict(row) for row in rows],
            "told": {d: result.reports for d, result in zip(options.sizes, results, strict=True)},
            "lines": [asdict(line) for line in by_size],
            "steady_lines": [asdict(line) for line in steady],
            "targets": [asdict(target) for target in verdicts],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _describe(repetitions: int) -> str:
    coverage = estimate([1.0] * repetitions).coverage
    return (
        f"Microseconds per transfer: medians of {repetitions} repetitions of {TRANSFERS} transfers. A ratio is that of "
        f"two medians; brackets hold the quotients of their intervals, each of which has a coverage of {coverage:.3f}."
    )


def _progress(d: int, sizes: Sequence[int]) -> None:
    if sys.stderr.isatty():
        print(f"d = {d} of {sizes[-1]} done", file=sys.stderr, end="\n" if d == sizes[-1] else "\r", flush=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plot", type=_plot_path, action="append", default=[], help="FILE.svg or FILE.png; repeatable")
    parser.add_argument("--json", type=Path, help="file for the figures of every repetition")
    parser.add_argument("--sizes", type=_sizes, default=list(SIZES), help="values of d, such as 2,1024")
    parser.add_argument(
        "--repetitions", type=int, default=REPETITIONS, help="repetitions of each contestant at each size"
    )
    parser.add_argument("--only", type=_names, default=list(CONTESTANTS), help=f"contestants: {', '.join(CONTESTANTS)}")
    parser.add_argument("--unpinned", action="store_true", help="let the kernel choose the processors")
    parser.add_argument(
        "--corrupt", help="corrupt one element of what this contestant delivers; the check must stop the run"
    )
    return parser.parse_args(arguments)


def _plot_path(text: str) -> Path:
    path = Path(text)
    if path.suffix not in _PLOT_SUFFIXES:
        message = f"cannot draw a plot to {text}: the file must end in .svg or .png"
        raise argparse.ArgumentTypeError(message)
    return path


def _sizes(text: str) -> list[int]:
    sizes = sorted({int(size) for size in text.split(",")})
    if sizes[0] < 1:
        message = f"d must be 1 or more, got {sizes[0]}"
        raise argparse.ArgumentTypeError(message)
    return sizes


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CONTESTANTS:
            message = f"unknown contestant {name!r}; choose from {', '.join(CONTESTANTS)}"
            raise argparse.ArgumentTypeError(message)
    return names


if __name__ == "__main__":
    main(sys.argv[1:])
