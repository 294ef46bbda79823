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

Result of `python benchmarks/crossover.py --plot docs/crossover.svg`, two cores of an AMD EPYC, Linux 6.18, Python 3.11;
the machine was shared (load average 4 to 8). Microseconds a transfer, medians of 10 repetitions; 97.9 % intervals.

From the request on:
    d     bytes     Pipe RawArray     pipe   shared     auto  auto / better mode        auto / better peer
    2        16     11.0     49.0     26.4     44.1     33.7  1.35 [1.00, 1.50] pipe    2.85 [2.46, 3.33] Pipe
    4        64     12.5     43.0     25.8     41.0     30.1  1.20 [1.04, 1.42] pipe    2.45 [1.93, 3.09] Pipe
    8       256     10.0     45.3     20.0     33.9     23.7  1.27 [0.98, 1.59] pipe    2.42 [2.22, 2.82] Pipe
   16     1,024     10.1     42.2     18.1     32.1     22.2  1.24 [1.07, 1.71] pipe    2.19 [2.03, 2.46] Pipe
   32     4,096     12.2    157.8     71.9     59.2     49.8  1.00 [0.51, 1.53] shared  2.64 [0.59, 7.67] Pipe
   64    16,384     14.2     40.7     36.1     28.4     29.7  0.97 [0.65, 1.35] shared  2.08 [1.42, 2.50] Pipe
  128    65,536     75.7     35.1     79.8     38.3     39.3  0.93 [0.76, 1.31] shared  0.99 [0.78, 1.36] RawArray
  256   262,144    280.2     45.1    209.9     40.8     36.6  0.82 [0.74, 0.96] shared  0.81 [0.61, 1.08] RawArray
  512 1,048,576   1326.5    158.0   1106.7     98.3     81.4  0.94 [0.74, 1.06] shared  0.52 [0.45, 0.91] RawArray
 1024 4,194,304  11957.0    443.5   4091.6    305.6    471.1  1.04 [0.96, 2.05] shared  0.82 [0.53, 1.77] RawArray

From the first array in hand on:
    d     bytes     Pipe RawArray     pipe   shared     auto  auto / better mode        auto / better peer
    2        16      7.6     45.8     16.1     33.8     16.1  0.98 [0.69, 1.28] pipe    1.93 [1.38, 2.39] Pipe
    4        64      9.6     41.4     17.2     32.5     16.8  1.03 [0.80, 1.21] pipe    1.75 [1.40, 2.17] Pipe
    8       256      7.4     43.6     13.8     27.7     12.9  0.93 [0.73, 1.32] pipe    1.76 [1.25, 2.05] Pipe
   16     1,024      7.7     40.4     11.9     24.5     10.5  0.92 [0.77, 1.27] pipe    1.36 [1.31, 1.69] Pipe
   32     4,096      9.8    140.3     42.9     39.2     30.4  0.83 [0.44, 1.49] shared  2.02 [0.39, 6.02] Pipe
   64    16,384     11.5     39.4     30.2     21.6     17.1  0.79 [0.62, 1.12] shared  1.51 [1.24, 1.81] Pipe
  128    65,536     72.9     33.9     67.8     30.1     23.7  0.80 [0.66, 0.94] shared  0.68 [0.54, 0.86] RawArray
  256   262,144    276.9     42.2    198.3     29.5     23.2  0.77 [0.71, 0.81] shared  0.56 [0.46, 0.71] RawArray
  512 1,048,576   1287.9    149.6   1092.4     83.9     68.2  0.92 [0.74, 1.02] shared  0.45 [0.38, 0.84] RawArray
 1024 4,194,304  11931.5    438.1   4065.8    289.8    440.6  1.03 [0.94, 2.08] shared  0.79 [0.50, 1.68] RawArray

`auto` takes what the better of its modes takes. From 64 KiB up it is level with the better peer or ahead of it. Below,
Pipe is ahead, so that the second target is missed at d = 2, 4, 8, 16 and 64: an epoch of stagepipe begins with about a
millisecond's work, 10 us for each of its 100 items here, and an item of a pipeline is numbered, counted and timed
besides. RawArray's two sides alternate, and would be faster on a single processor: 21 us up to 64 KiB.
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
