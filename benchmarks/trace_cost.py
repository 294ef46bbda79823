"""Measure what a trace costs: the same pipelines with a trace and without, in turns in one process.

    python -m benchmarks.trace_cost [--turns 9] [--only small,image]

small   20,000 integers through a stage that adds one: some 6 us an item
image   1,500 arrays of 602 kB through two stages that read them, in shared memory

The time of a run is that of its loop, from the first item to the last. The file is written after it, by the close, and
stated apart. The first turn warms the caches and does not count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.command import machine, machine_line, parse_names, repeat_command
from benchmarks.common.figures import estimate, ratio
from stagepipe import Pipeline

_STAGES = "benchmarks.common.array_stages"
PIPELINES: Mapping[str, Mapping[str, Any]] = {
    "small": {
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 20_000}},
        "stages": [{"name": "plus", "uses": f"{_STAGES}.plus"}],
    },
    "image": {
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 1_500}},
        "stages": [
            {"name": "make", "uses": f"{_STAGES}.make", "workers": 2},
            {"name": "look", "uses": f"{_STAGES}.look"},
        ],
    },
}


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace_cost")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", type=parse_names(tuple(PIPELINES), "pipelines"), default=tuple(PIPELINES))
    options = parser.parse_args(arguments)
    print(machine_line(machine()), f"Repeat: {repeat_command('trace_cost')}\n", sep="\n", flush=True)
    for name in options.only:
        print(_measure(name, options.turns), flush=True)


def _measure(name: str, turns: int) -> str:
    config = PIPELINES[name]
    item_count = config["source"]["with"]["count"]
    item_us: dict[bool, list[float]] = {False: [], True: []}
    close_s: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(-1, turns):
            for is_traced in (bool(turn % 2), not turn % 2):
                loop_s, closing_s = _run(config, Path(folder) / "t.json.gz" if is_traced else None)
                if turn >= 0:
                    item_us[is_traced].append(loop_s / item_count * 1e6)
                    close_s[is_traced].append(closing_s)
    off, on = (estimate(item_us[is_traced]).text() for is_traced in (False, True))
    closes = " and ".join(estimate(close_s[is_traced]).text() for is_traced in (False, True))
    factor = ratio(item_us[True], item_us[False]).text()
    return f"{name}: {off} us an item without a trace, {on} with one: {factor} times as long; close: {closes} s"


def _run(config: Mapping[str, Any], path: Path | None) -> tuple[float, float]:
    """Return the seconds of the loop, and those of the close."""
    with Pipeline(config, trace=path) as pipeline:
        items = iter(pipeline)
        next(items)
        began_s = time.perf_counter()
        for item in items:
            del item
        ended_s = time.perf_counter()
        pipeline.close()
        return ended_s - began_s, time.perf_counter() - ended_s


if __name__ == "__main__":
    main(sys.argv[1:])
