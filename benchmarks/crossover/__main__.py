"""Compare pipe and shared memory by array size, and `auto` with the better of the two: experiment E3, complete.

    python -m benchmarks.crossover [--plot FILE.svg|FILE.png] [--json FILE] [--sizes 2,4] [--rounds 10]

A write-up of 2022 sent float32 arrays (d, d), d = 2, 4 ... 1024, from one process to another, with 100 transfers in
each of 10 repetitions, by `multiprocessing.Pipe` and by `RawArray` with a Pipe as the flag. This repeats it, together
with a stagepipe source in its own process with `transport: {mode: pipe}`, `mode: shared_memory` and `auto`.

The repetitions of the five alternate. A repetition lasts from the request (for stagepipe: a new epoch of the same
workers) until the last array has arrived; a second table starts when the first array has arrived. Before and after, a
repetition of each is compared element by element. The medians decide which of two is better; brackets show the lowest
and the highest quotient of their intervals. The receiver has its own processor, except with `--unpinned`.
docs/benchmarks.md has the figures, as experiment E3.

Below 64 KiB Pipe is ahead of `auto`: an epoch of stagepipe starts with half a millisecond of work, every item is
numbered, counted and timed, and an item that does not fit a packet of 4 KiB takes a block.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.common.command import add_corrupt, add_names, finish, machine_line, make_parser, open_run
from benchmarks.common.turn import Placement
from benchmarks.crossover import CONTESTANTS, TRANSFERS, SizeResult, draw, lines, make_size_table, measure, targets

SIZES = tuple(2**power for power in range(1, 11))
REPETITIONS = 10
_PLOT_SUFFIXES = (".svg", ".png")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the plot and the JSON if requested."""
    options = _options(arguments)
    multiprocessing.set_forkserver_preload(["benchmarks.crossover"])
    about = open_run("crossover")  # before this process is pinned
    placement = Placement(pinned=not options.unpinned)
    print(placement.description, flush=True)
    results: list[SizeResult] = []
    for d in options.sizes:
        results.append(measure(d, options.only, options.rounds, placement, options.corrupt))
        _progress(d, options.sizes)
    rows = [row for result in results for row in result.rows]
    by_size, steady = lines(rows), lines(rows, steady=True)
    verdicts = list(targets(by_size, len(options.sizes)))
    for start, shown in (("the request", by_size), ("the first array", steady)):
        print(f"\nMicroseconds per transfer, measured from {start}:\n", *make_size_table(shown), sep="\n")
    print("\nTargets, measured from the request:", *(target.line() for target in verdicts), sep="\n")
    if options.plot:
        draw(rows, options.plot, machine_line(about["machine"]))
    document = {
        **about,
        "pinned": placement.pinned,
        "transfers": TRANSFERS,
        "rows": [asdict(row) for row in rows],
        "told": {d: result.reports for d, result in zip(options.sizes, results, strict=True)},
        "lines": [asdict(line) for line in by_size],
        "steady_lines": [asdict(line) for line in steady],
        "targets": [asdict(target) for target in verdicts],
    }
    finish(options.json, document)


def _progress(d: int, sizes: Sequence[int]) -> None:
    if sys.stderr.isatty():
        print(f"d = {d} of {sizes[-1]} done", file=sys.stderr, end="\n" if d == sizes[-1] else "\r", flush=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__, rounds=REPETITIONS)
    parser.add_argument("--plot", type=_plot_path, action="append", default=[], help="FILE.svg or FILE.png; repeatable")
    parser.add_argument("--sizes", type=_sizes, default=list(SIZES), help="values of d, such as 2,1024")
    add_names(parser, "--only", tuple(CONTESTANTS), "contestant")
    parser.add_argument("--unpinned", action="store_true", help="let the kernel choose the processors")
    add_corrupt(parser)
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


if __name__ == "__main__":
    main(sys.argv[1:])
