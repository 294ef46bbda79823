"""Measure what the series of a report costs: the CPU time of the thread that samples the board and the memory.

    python -m benchmarks.series [--rounds 3] [--seconds 60] [--workers 14] [--json FILE]

Each round runs a pipeline whose workers sleep 5 ms an item, for so many seconds after its first item, and reads the CPU
clock of the thread `stagepipe-series` at both ends. Printed is its share of one core. The limit is 0.2 % at 14 workers.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

from benchmarks.common.command import finish, make_parser, open_run
from benchmarks.common.figures import format_figures
from benchmarks.common.turn import take_rounds
from stagepipe import Pipeline

_NAP_S = 0.005


def nap(item: int) -> int:
    """Sleep as a stage that waits for a disk does."""
    time.sleep(_NAP_S)
    return item


def measure_cpu_share(workers: int, seconds: float) -> float:
    """Run a pipeline with so many workers, its source among them; return the thread's CPU time per second of it."""
    config = {
        "name": "series",
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 1 << 40}},
        "stages": [{"name": "nap", "uses": nap, "workers": workers - 1}],
    }
    with Pipeline(config) as pipeline:
        items = iter(pipeline)
        next(items)
        [thread] = [each for each in threading.enumerate() if each.name == "stagepipe-series"]
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        began_s, began_cpu_s = time.monotonic(), time.clock_gettime(clock)
        while time.monotonic() - began_s < seconds:
            next(items)
        return (time.clock_gettime(clock) - began_cpu_s) / (time.monotonic() - began_s)


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a round")
    parser.add_argument("--workers", type=int, default=14)
    options = parser.parse_args(arguments)
    document = open_run("series")
    found = take_rounds(
        [f"{options.workers} workers"],
        options.rounds,
        lambda _: {"% of a core": 100 * measure_cpu_share(options.workers, options.seconds)},
    )
    print(*format_figures(f"rounds of {options.seconds:g} s", found, ["% of a core"]), sep="\n")
    finish(options.json, {**document, "figures": found})


if __name__ == "__main__":
    main(sys.argv[1:])
