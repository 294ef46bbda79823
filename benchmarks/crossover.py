"""Pipe against shared memory by array size, and whether `auto` takes the better one: experiment E3, whole.

    python benchmarks/crossover.py [--plot FILE.svg|FILE.png] [--json FILE] [--sizes 2,4] [--repetitions 10]

A write-up of 2022 sent float32 arrays (d, d), d = 2, 4 ... 1024, from one process to another, 100 transfers in each of
10 repetitions, and found no difference when they are small and shared memory ahead when they are large. Here is that,
with its two contestants, and stagepipe in each of its modes:

    Pipe                      `multiprocessing.Pipe` carries the array
    RawArray                  `multiprocessing.RawArray` holds it, a Pipe is the flag; the receiver copies it out, and
                              says so by the same Pipe, since the next one is written over it
    stagepipe pipe            a source in a process of its own, the caller behind it, `transport: {mode: pipe}`
    stagepipe shared_memory   the same with `mode: shared_memory`
    stagepipe auto            the same with `mode: auto`, which is how it comes

All five of a size are alive side by side, and each repetition of one is followed by one of another, in another order
every time. A repetition lasts from the request (of stagepipe: a new epoch of the same workers) until the last array is
in hand; a second table begins with the first array in hand. The receiver looks at each array's first element, which
holds its number; before and after the timing a repetition of each is compared element by element. Which of two is the
better one is by their medians; the ratio to it is taken pair by pair, and in brackets is the sign-test interval of its
median. The receiver has a processor of its own and all senders the others: left alone, the kernel puts one pair of
processes on one processor and the next on two, which makes twice the difference (`--unpinned` shows it).

RESULT
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from crossover_.drawing import draw
from crossover_.payload import TRANSFERS
from crossover_.rounds import CONTESTANTS, Measured, measure
from crossover_.verdict import lines, table, targets
from side_by_side.figures import estimate
from side_by_side.machine import machine, machine_line
from side_by_side.placing import Places

SIZES = tuple(2**power for power in range(1, 11))
REPETITIONS = 10
_FORMS = (".svg", ".png")


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the plot and the JSON if asked to."""
    options = _options(arguments)
    multiprocessing.set_forkserver_preload(["crossover_.peers"])
    found, begin = machine(), time.monotonic()
    places = Places(pinned=not options.unpinned)
    command = shlex.join([Path(sys.executable).name, *sys.argv])
    print(
        machine_line(found), f"{_how(options.repetitions)} {places.words}", f"Again: {command}\n", sep="\n", flush=True
    )
    measured: list[Measured] = []
    for d in options.sizes:
        measured.append(measure(d, options.only, options.repetitions, places, options.corrupt))
        _progress(d, options.sizes)
    rows = [row for each in measured for row in each.rows]
    by_size, steady = lines(rows), lines(rows, steady=True)
    verdicts = list(targets(by_size, len(options.sizes)))
    print("From the request on:", *table(by_size), sep="\n")
    print("\nFrom the first array in hand on:", *table(steady), sep="\n")
    print("\nTargets, from the request on:", *(target.line() for target in verdicts), sep="\n")
    print(f"{time.monotonic() - begin:.0f} s; load average {machine()['load_average']:.1f} at the end")
    if options.plot:
        draw(rows, options.plot, machine_line(found))
    if options.json:
        plain = {
            "command": command,
            "machine": found,
            "pinned": places.pinned,
            "transfers": TRANSFERS,
            "rows": [asdict(row) for row in rows],
            "told": {d: each.told for d, each in zip(options.sizes, measured, strict=True)},
            "lines": [asdict(line) for line in by_size],
            "steady_lines": [asdict(line) for line in steady],
            "targets": [asdict(target) for target in verdicts],
        }
        options.json.write_text(json.dumps(plain, indent=1) + "\n")


def _how(repetitions: int) -> str:
    coverage = estimate([1.0] * repetitions).coverage
    return (
        f"Microseconds a transfer: medians of {repetitions} repetitions of {TRANSFERS} transfers. In brackets the "
        f"interval that holds the true median of the ratio with probability {coverage:.3f}."
    )


def _progress(d: int, sizes: Sequence[int]) -> None:
    if sys.stderr.isatty():
        print(f"d = {d} of {sizes[-1]} done", file=sys.stderr, end="\n" if d == sizes[-1] else "\r", flush=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plot", type=_picture, action="append", default=[], help="FILE.svg or FILE.png; repeatable")
    parser.add_argument("--json", type=Path, help="where every repetition's figures go")
    parser.add_argument("--sizes", type=_sizes, default=list(SIZES), help="of d, such as 2,1024")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of each contestant at each size")
    parser.add_argument("--only", type=_names, default=list(CONTESTANTS), help=f"of {', '.join(CONTESTANTS)}")
    parser.add_argument("--unpinned", action="store_true", help="leave it to the kernel which processors are taken")
    parser.add_argument("--corrupt", help="spoil an element of what this contestant delivers: the check must stop it")
    return parser.parse_args(arguments)


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix not in _FORMS:
        message = f"{text}: a plot is written to a .svg or a .png file"
        raise argparse.ArgumentTypeError(message)
    return path


def _sizes(text: str) -> list[int]:
    sizes = sorted({int(size) for size in text.split(",")})
    if sizes[0] < 1:
        message = f"{text}: d is 1 or more"
        raise argparse.ArgumentTypeError(message)
    return sizes


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in CONTESTANTS:
            message = f"no contestant {name!r}; there are {', '.join(CONTESTANTS)}"
            raise argparse.ArgumentTypeError(message)
    return names


if __name__ == "__main__":
    main(sys.argv[1:])
