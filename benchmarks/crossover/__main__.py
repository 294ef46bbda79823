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
decide which of two contestants is the better one. The ratio to it is taken pair by pair; brackets hold the sign-test
interval of its median. The receiver has its own processor and all senders share the others: without pinning, the kernel
puts one pair of processes on one processor and the next on two, which alone makes a factor of two (`--unpinned` shows
it).

Result of `python -m benchmarks.crossover --plot docs/pictures/crossover.svg`, two cores of an AMD EPYC, Linux 6.18,
Python 3.11; the machine was shared (load average 3). Microseconds per transfer, medians of 10 repetitions; 97.9 %
intervals.

From the request:
    d     bytes     Pipe RawArray     pipe   shared     auto  auto / better mode        auto / better peer
    2        16     14.8     50.0     23.0     43.0     21.6  0.93 [0.72, 1.46] pipe    1.42 [1.20, 1.84] Pipe
    4        64     12.9     49.7     22.0     40.9     20.9  0.97 [0.76, 1.30] pipe    1.60 [1.30, 1.87] Pipe
    8       256     14.5     43.2     22.3     39.4     22.2  0.96 [0.65, 1.15] pipe    1.58 [1.19, 1.84] Pipe
   16     1,024     15.3     43.6     24.4     46.1     25.7  0.97 [0.82, 1.14] pipe    1.67 [1.50, 1.83] Pipe
   32     4,096     10.6     44.4     32.5     31.7     25.8  0.86 [0.73, 0.88] shared  2.66 [2.12, 2.82] Pipe
   64    16,384     22.8     43.5     60.9     47.2     40.0  0.83 [0.73, 0.96] shared  1.60 [1.38, 2.03] Pipe
  128    65,536     82.2     50.9     91.8     41.5     34.6  0.85 [0.66, 0.90] shared  0.60 [0.52, 0.79] RawArray
  256   262,144    308.1     55.3    263.2     38.5     31.8  0.79 [0.59, 0.97] shared  0.61 [0.51, 0.71] RawArray
  512 1,048,576   1235.0    149.9    913.5     76.2     67.6  0.94 [0.84, 1.00] shared  0.47 [0.42, 0.59] RawArray
 1024 4,194,304   9650.6    322.7   4566.3    194.5    333.6  1.12 [0.85, 2.49] shared  0.78 [0.46, 1.43] RawArray

From the first array:
    d     bytes     Pipe RawArray     pipe   shared     auto  auto / better mode        auto / better peer
    2        16     12.7     48.1     16.7     38.4     17.2  0.93 [0.80, 1.40] pipe    1.38 [1.18, 1.77] Pipe
    4        64     11.0     47.9     15.5     32.1     14.9  0.98 [0.87, 1.19] pipe    1.47 [1.21, 1.73] Pipe
    8       256     12.1     41.6     17.1     33.4     17.1  0.93 [0.65, 1.25] pipe    1.37 [1.17, 1.81] Pipe
   16     1,024     13.0     41.5     18.7     39.3     19.5  1.00 [0.75, 1.17] pipe    1.55 [1.38, 1.74] Pipe
   32     4,096      7.8     42.9     24.7     25.1     19.9  0.80 [0.74, 0.85] pipe    2.58 [2.35, 2.70] Pipe
   64    16,384     19.8     41.2     51.5     40.0     31.3  0.79 [0.66, 0.91] shared  1.55 [1.13, 1.91] Pipe
  128    65,536     79.5     48.0     82.7     31.9     25.3  0.79 [0.67, 0.82] shared  0.50 [0.39, 0.63] RawArray
  256   262,144    305.9     52.5    253.5     32.2     22.3  0.75 [0.54, 0.83] shared  0.42 [0.38, 0.58] RawArray
  512 1,048,576   1229.4    144.4    904.7     67.0     59.8  0.92 [0.79, 1.03] shared  0.43 [0.37, 0.54] RawArray
 1024 4,194,304   9606.9    317.0   4534.3    184.1    328.5  1.09 [0.86, 2.42] shared  0.78 [0.44, 1.36] RawArray

`auto` is as fast as the better of its modes. From 64 KiB up it is ahead of the better peer. Below, Pipe is ahead, so
the second target is missed at d = 2 to 64, for three reasons. An epoch of stagepipe starts with half a millisecond of
work, 5 us for each of its 100 items here. A pipeline also numbers, counts and times every item (12 to 16 us of work on
either side). An item that does not fit a packet of 4 KiB takes a block. RawArray's two sides alternate, and would be
faster on a single processor.
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
        f"Microseconds per transfer: medians of {repetitions} repetitions of {TRANSFERS} transfers. Brackets hold the "
        f"interval that contains the true median of the ratio with probability {coverage:.3f}."
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
