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

Two CPUs (threads of one core), Python 3.11, not used by others, 11 minutes. Ratios are `auto`, next run, to the best
finalist by hand, round by round; the last column is the first run, which probes:

    job        rounds  best finalist                           rate               whole              whole, first run
    images     6       source | decode | resize | to_float32   1.23 [1.09, 1.47]  1.19 [1.04, 1.42]  0.89 [0.80, 1.03]
    thumbnails 9       source | decode+resize x2               0.98 [0.84, 1.22]  0.96 [0.80, 1.16]  0.92 [0.70, 1.21]
    tensors    15      source | dataset x2                     1.01 [0.87, 1.21]  0.89 [0.76, 1.00]  0.52 [0.43, 0.59]
    models     5       source | detect+embed+rank x2           1.00 [0.85, 1.10]  0.93 [0.78, 1.03]  0.61 [0.57, 0.70]

A run takes 4 to 10 s here, so the start and the probe weigh. For images, the two rounds of trials did not let the
layout that `auto` chose, decode+resize+to_float32 x2, into the finals.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import stagepipe
from benchmarks.auto_jobs import Job, Layout, list_layouts, make_auto_layout, make_jobs
from benchmarks.common.command import machine, machine_line
from benchmarks.common.turn import order
from stagepipe.api import run_to_sink
from stagepipe.calibration import load_curves, save_curves
from stagepipe.core import VERSION, format_ns

AUTO_FIRST = "auto, first run"
AUTO_NEXT = "auto, next run"
"""The contestants without a layout of their own. The first run probes; the next one finds what it measured."""

_FINALISTS = 3
_MAX_TRIAL_ROUNDS = 2
_MIN_ROUNDS = 2
_TRIAL_SHARE = 0.5
"""The share of a job's time in which layouts are tried, but each at least once."""


@dataclass(frozen=True)
class Run:
    """One run: source items per second without and with the start, CPU seconds per item, and what `auto` chose."""

    rate: float
    whole_rate: float
    cpu_s: float
    choice: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """The runs of each contestant, one a round: both kinds of `auto`, then the layouts by hand, the fastest first."""

    runs: Mapping[str, Sequence[Run]]
    layouts: int
    trial_rounds: int

    @property
    def best_by_hand(self) -> str:
        """The layout with the highest median rate."""
        return max(list(self.runs)[2:], key=lambda name: median(run.rate for run in self.runs[name]))

    def compare(self, auto: str, name: str, *, whole: bool = False) -> list[float]:
        """The rate of `auto` divided by that of a layout, for each round."""
        pairs = zip(self.runs[auto], self.runs[name], strict=True)
        return [one.whole_rate / other.whole_rate if whole else one.rate / other.rate for one, other in pairs]


def run_once(job: Job, layout: Layout, limit: int | None = None) -> Run:
    """Run a job once, to its sink if it has one, with all items or the first `limit`."""
    started_s, started_cpu_s = perf_counter(), process_time()
    with stagepipe.Pipeline(job.make_config(layout), limit=limit) as pipeline:
        choice = pipeline.explain_auto_workers()
        run_to_sink(pipeline, lambda _: None)
        whole_s = perf_counter() - started_s
    report = pipeline.report()
    items = report.run.items_in
    cpu_s = sum(stage.cpu_ns for stage in report.stages if not stage.fused_into) / 1e9
    return Run(
        rate=items / ((report.run.wall_ns - report.run.first_item_ns) / 1e9),
        whole_rate=items / whole_s,
        cpu_s=(cpu_s + process_time() - started_cpu_s) / items,
        choice=choice,
    )


def race(job: Job, seconds: float, trial_items: int, cache: Path) -> RaceResult:
    """Try all layouts in turns, then race the finalists against `auto`. `cache` is where a probe leaves its costs."""
    begin_s = perf_counter()
    layouts = dict(list_layouts(job, len(os.sched_getaffinity(0))))
    run_once(job, make_auto_layout(job), trial_items)  # libraries are read from the disk
    trial_runs: dict[str, list[Run]] = {name: [] for name in layouts}
    rounds = 0
    while rounds < 1 or (rounds < _MAX_TRIAL_ROUNDS and perf_counter() - begin_s < _TRIAL_SHARE * seconds / 2):
        for name in random.Random(rounds).sample(list(layouts), len(layouts)):
            trial_runs[name].append(run_once(job, layouts[name], trial_items))
        rounds += 1
    by_rate = sorted(layouts, key=lambda name: max(run.rate for run in trial_runs[name]), reverse=True)
    names = [AUTO_FIRST, AUTO_NEXT, *by_rate[:_FINALISTS]]
    runs: dict[str, list[Run]] = {name: [] for name in names}
    done = 0
    while done < _MIN_ROUNDS or (perf_counter() - begin_s) * (1 + 1 / (done + 2)) < seconds:
        for name in order(names, done):
            if name == AUTO_FIRST:
                shutil.rmtree(cache, ignore_errors=True)
            elif name == AUTO_NEXT and not cache.exists():
                stagepipe.Pipeline(job.make_config(make_auto_layout(job))).explain_auto_workers()
            runs[name].append(run_once(job, layouts.get(name, make_auto_layout(job))))
        done += 1
    return RaceResult(runs=runs, layouts=len(layouts), trial_rounds=rounds)


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
