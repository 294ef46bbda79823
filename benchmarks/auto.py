"""Compare `workers: auto` with the best layout that can be made by hand.

    python benchmarks/auto.py [--job images ...] [--seconds 50] [--images data/images] [--scale 1] [--trial 300]

Four jobs: JPEGs to float32 batches, thumbnails into npz files, a dataset of tiny tensors with `Batch`, three torch
models. For each, all sensible layouts are tried once on a few items: each stage fused, or with 1 or CPUs workers. The
fastest become finalists, and race `auto` on every stage, in turns, until the job's `--seconds` are over. `rate` is
items per second after the first item, in the best turn; `low` is that of the worst. `whole` is with the start and, for
`auto`, with its probe, in the best turn. `CPU` is the median CPU time per item of workers and consumer, without the
probe's workers. The last column divides the rate of `auto` by that of each finalist.

Two CPUs, Python 3.11, `--seconds 30` (images 40). Other programs kept both CPUs busy (load average 8 to 10), so the
rates vary by half and not all layouts could be tried:

    job         auto   best by hand                           auto / it   whole: auto, by hand   CPU: auto, by hand
    images       306   336  source | decode+resize x2 | ...        0.91             204   292       3.0 ms   3.1 ms
    thumbnails   989   810  source+decode | resize                 1.22             777   776       2.2 ms   2.4 ms
    tensors   52,708   44,967  source | dataset                    1.17          21,885   36,459     38 µs    31 µs
    models        44   45  source+detect+embed+rank                0.98              25    40        30 ms    24 ms
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

import stagepipe
from auto_.jobs import AUTO, Job, Layout, list_layouts, make_auto_layout, make_jobs
from side_by_side.machine import machine, machine_line
from side_by_side.turns import order
from stagepipe.api import run_to_sink
from stagepipe.core import format_ns

_FINALISTS = 3
_MIN_ROUNDS = 2
_TRIAL_SHARE = 0.5
"""The share of a job's time in which layouts are tried."""


@dataclass(frozen=True)
class Run:
    """One run: source items per second without and with the start, CPU seconds per item, and what `auto` chose."""

    rate: float
    whole_rate: float
    cpu_s: float
    choice: tuple[str, ...]


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


def compare(job: Job, seconds: float, trial_items: int) -> None:
    """Try the layouts once, then the finalists in turns with `auto`, and print the table."""
    begin_s = perf_counter()
    layouts = dict(list_layouts(job, len(os.sched_getaffinity(0))))
    trials = random.Random(0).sample(list(layouts), len(layouts))  # if time is short, not only those that are alike
    run_once(job, make_auto_layout(job), trial_items)  # libraries are read from the disk
    first: dict[str, float] = {}
    for name in trials:
        if perf_counter() - begin_s < _TRIAL_SHARE * seconds or len(first) < _FINALISTS:
            first[name] = run_once(job, layouts[name], trial_items).rate
    names = [AUTO, *sorted(first, key=first.__getitem__, reverse=True)[:_FINALISTS]]
    runs: dict[str, list[Run]] = {name: [] for name in names}
    rounds = 0
    while rounds < _MIN_ROUNDS or perf_counter() - begin_s < seconds * rounds / (rounds + 1):
        for name in order(names, rounds):
            runs[name].append(run_once(job, make_auto_layout(job) if name == AUTO else layouts[name]))
        rounds += 1
    print(f"\n{job.name}: {len(first)} of {len(layouts)} layouts tried, {rounds} rounds")
    print(f"{'layout':44}{'rate':>9}{'low':>9}{'whole':>9}{'CPU':>9}{'auto / it':>11}")
    for name in names:
        rates = [run.rate for run in runs[name]]
        whole = max(run.whole_rate for run in runs[name])
        cpu = format_ns(int(1e9 * statistics.median(run.cpu_s for run in runs[name])))
        ratio = max(run.rate for run in runs[AUTO]) / max(rates)
        print(f"{name:44}{max(rates):>9,.0f}{min(rates):>9,.0f}{whole:>9,.0f}{cpu:>9}{ratio:>11.2f}")
    for line in sorted({line for run in runs[AUTO] for line in run.choice}):
        print(f"  {line}")


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", action="append", choices=("images", "thumbnails", "tensors", "models"))
    parser.add_argument("--seconds", type=float, default=50, help="about how long a job takes")
    parser.add_argument("--images", default="data/images", help="a folder that scripts/make_images.py made")
    parser.add_argument("--trial", type=int, default=300, help="source items of the first trial of each layout")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args(arguments)
    print(machine_line(machine()))
    with tempfile.TemporaryDirectory() as out:
        for job in make_jobs(options.images, out, options.scale):
            if not options.job or job.name in options.job:
                compare(job, options.seconds, int(options.trial * job.trial_factor))


if __name__ == "__main__":
    main(sys.argv[1:])
