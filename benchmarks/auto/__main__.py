"""Compare `workers: auto` with the best layout that can be made by hand.

    python scripts/make_images.py --count 2000 --out data/images
    python -m benchmarks.auto [--job images ...] [--seconds 170] [--images data/images] [--scale 1] [--trial 300]

Four jobs: JPEGs to float32 batches, thumbnails into npz files, a dataset of tiny tensors with `Batch`, three torch
models. For each, all sensible layouts are tried on a few items, in one or two rounds: each stage fused, or with 1 or
CPUs workers. The fastest become finalists, and race `auto` on every stage, in turns, until the job's `--seconds` are
over: twelve minutes for all four. The first run of `auto` probes the stages; the next one finds the measured costs in
the cache folder.

`rate` is items per second after the first item, `whole` with the start and the probe; both are medians of the rounds.
`CPU` is the median CPU time per item of workers and consumer, without the probe's workers. The last two columns divide
the rates of `auto`, next run, by those of the layout in the same round: median and range.

Not yet run on a quiet machine. Two CPUs, Python 3.11, two to four rounds, while other programs kept both CPUs busy:

    job      load     best of the finalists                rate: auto / it    whole: next run    whole: first run
    images   4 to 5   source | decode+resize+to_float32 x2 0.88 [0.56, 0.91]  0.85 [0.55, 0.88]  0.65 [0.41, 0.71]
    images   6 to 32  source+decode+resize+to_float32      1.45 [1.44, 1.46]  1.40 [1.38, 1.41]  0.68 [0.62, 0.74]
    tensors  4        source | dataset                     0.87 [0.76, 0.99]  0.82 [0.73, 0.91]  0.55 [0.50, 0.59]
    tensors  4 to 6   source | dataset                     1.09 [0.40, 1.79]  0.95 [0.43, 1.47]  0.61 [0.39, 0.83]
    models   4 to 7   source | detect | embed+rank x2      1.03 [0.88, 1.18]  1.16 [0.87, 1.44]  0.82 [0.51, 1.13]

The second line of a job is with the cost of sharing items in the forecast and cost curves from before the run; models
and the first lines are without. 1.45 is no comparison with the best: the single round of trials missed the layout of
the line above, which `auto` chose itself in this run. Thumbnails were not run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.auto.jobs import make_jobs
from benchmarks.auto.race import AUTO_FIRST, AUTO_NEXT, RaceResult, race
from benchmarks.common.machine import machine, machine_line
from stagepipe.calibration import load_curves, save_curves
from stagepipe.core import VERSION, format_ns


def print_result(name: str, result: RaceResult) -> None:
    """Print the table of a job, and what `auto` chose."""
    rounds = len(result.runs[AUTO_NEXT])
    print(f"\n{name}: {result.layouts} layouts tried in {result.trial_rounds} rounds; {rounds} rounds")
    print(f"{'layout':42}{'rate':>8}{'whole':>8}{'CPU':>8}  {'rate: auto / it':19}whole: auto / it")
    for layout, runs in result.runs.items():
        cpu = format_ns(int(1e9 * median(run.cpu_s for run in runs)))
        rate = median(run.rate for run in runs)
        whole_rate = median(run.whole_rate for run in runs)
        ratios = (format_ratios(result.compare(AUTO_NEXT, layout, whole=whole)) for whole in (False, True))
        print(f"{layout:42}{rate:>8,.0f}{whole_rate:>8,.0f}{cpu:>8}  {next(ratios):19}{next(ratios)}")
    best = result.best_by_hand
    first = format_ratios(result.compare(AUTO_FIRST, best, whole=True))
    steady, following = (format_ratios(result.compare(AUTO_NEXT, best, whole=whole)) for whole in (False, True))
    print(f"  auto / {best}: rate {steady}, whole {following}, whole of the first run {first}")
    for line in sorted({line for runs in result.runs.values() for run in runs for line in run.choice}):
        print(f"  {line}")


def format_ratios(ratios: Sequence[float]) -> str:
    """The median with the range.

    >>> format_ratios([1.0, 0.9, 1.25])
    '1.00 [0.90, 1.25]'
    """
    return f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", action="append", choices=("images", "thumbnails", "tensors", "models"))
    parser.add_argument("--seconds", type=float, default=170, help="about how long a job takes")
    parser.add_argument("--images", default="data/images", help="a folder that scripts/make_images.py made")
    parser.add_argument("--trial", type=int, default=300, help="source items of the first trial of each layout")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args(arguments)
    print(machine_line(machine()))
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as cache:
        curves = load_curves(VERSION)
        os.environ["XDG_CACHE_HOME"] = cache
        save_curves(curves, VERSION)
        for job in make_jobs(options.images, out, options.scale):
            if not options.job or job.name in options.job:
                trial_items = int(options.trial * job.trial_factor)
                result = race(job, options.seconds, trial_items, Path(cache, "stagepipe", "costs"))
                print_result(job.name, result)


if __name__ == "__main__":
    main(sys.argv[1:])
