"""Races the layouts of a job against `auto`, in turns."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import stagepipe
from benchmarks.auto.jobs import Job, Layout, list_layouts, make_auto_layout
from benchmarks.common.turns import order
from stagepipe.api import run_to_sink

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
