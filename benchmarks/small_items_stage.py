"""Measure what a stage that passes a small dict on costs in a real pipeline: CPU of its worker's process, per item.

    python -m benchmarks.small_items_stage [--items 100000] [--rounds 5]

A source makes {id, label, name}, one stage in its own process returns it, and this process receives it. The processor
time is that of the stage's worker from the report, operating system included, between two epochs' ends, so starting is
not part of it. Seeding and timing are on. Where the worker's stage has used torch, torch is seeded before each item.

Two CPUs of an Intel Xeon, Linux 6.18, Python 3.11, not used by others; median, least and most of 5 rounds:

    passes on         9.6 us of CPU (8.8 to 14.9)
    torch imported   13.0 us (10.9 to 15.1)
    torch used       20.1 us (18.7 to 21.7)
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

from benchmarks.common.machine import machine, machine_line
from stagepipe import Pipeline

_MODULE = "small_dicts"
STAGES = {
    "passes on": f"{_MODULE}.keep",
    "torch imported": f"{_MODULE}.KeepBesideTorch",
    "torch used": f"{_MODULE}.KeepWithTorch",
}


def measure(uses: str, count: int) -> tuple[float, float]:
    """Return the worker's CPU time and the wall time of an item, in us."""
    config = {
        "name": "small-items",
        "source": {"uses": f"{_MODULE}.Dicts", "with": {"count": count}},
        "preload": ["torch"],
        "stages": [{"name": "keep", "uses": uses}],
    }
    with Pipeline(config) as pipeline:
        found = []
        for _ in range(2):
            received = sum(1 for _ in pipeline)
            if received != count:
                raise SystemExit(f"{received} items arrived instead of {count}")
            report = pipeline.report()
            found.append((next(stage.cpu_ns for stage in report.stages if stage.name == "keep"), report.run.wall_ns))
    (first_cpu_ns, first_wall_ns), (cpu_ns, wall_ns) = found
    return (cpu_ns - first_cpu_ns) / count / 1000, (wall_ns - first_wall_ns) / count / 1000


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    rounds = [{name: measure(uses, options.items) for name, uses in STAGES.items()} for _ in range(options.rounds)]
    print(machine_line(machine()))
    for name in STAGES:
        times_us = sorted(measured[name][0] for measured in rounds)
        wall_us = median(measured[name][1] for measured in rounds)
        print(
            f"{name:20}{median(times_us):7.2f} us of CPU  ({times_us[0]:.2f} to {times_us[-1]:.2f})  {wall_us:.1f} us"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
