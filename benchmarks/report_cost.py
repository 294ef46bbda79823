"""Measure the cost of a trace and of the series of a report, in turns in one process.

    python -m benchmarks.report_cost [--rounds 9] [--only small,image,series] [--json FILE]

small   20,000 integers through a stage that adds one, with and without a trace: about 6 us per item
image   1,500 arrays of 602 kB through two stages that read them, in shared memory, with a trace and without
series  the CPU time of the thread that samples the board and the memory, as a share of one core, while workers sleep
        5 ms per item. The limit is 0.2 % at 14 workers.

The time of a run is the time of its loop, from the first item to the last. The trace's file is written afterwards, when
the pipeline closes; that time is listed separately. Before the rounds, one run of each warms the caches.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.command import add_names, finish, make_parser, open_run
from benchmarks.common.figures import format_figures
from benchmarks.common.turn import take_rounds
from stagepipe import Pipeline

_STAGES = "benchmarks.common.stages"
_ITEMS = {"small": 20_000, "image": 1_500}
PIPELINES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "small": [{"name": "plus", "uses": f"{_STAGES}.plus"}],
    "image": [
        {"name": "make", "uses": f"{_STAGES}.make", "workers": 2},
        {"name": "look", "uses": f"{_STAGES}.look"},
    ],
}
_WITHOUT, _WITH = "without a trace", "with one"
_SERIES = "series"
_NAP_S = 0.005


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = make_parser(__doc__, rounds=9)
    add_names(parser, "--only", (*PIPELINES, _SERIES), "part")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a round of the series")
    parser.add_argument("--workers", type=int, default=14, help="of the series")
    options = parser.parse_args(arguments)
    document = open_run("report_cost")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json.gz"
        for name in options.only:
            if name == _SERIES:
                continue
            for is_traced in (False, True):
                _run(name, path if is_traced else None)
            found = take_rounds(
                (_WITHOUT, _WITH),
                options.rounds,
                lambda how, name=name: _run(name, path if how == _WITH else None),  # type: ignore[misc]
            )
            document[name] = found
            print("", *format_figures(name, found, ["us an item"], _WITHOUT), sep="\n")
            print(*format_figures(f"{name}, close", found, ["s"]), sep="\n", flush=True)
    if _SERIES in options.only:
        found = take_rounds(
            [f"{options.workers} workers"],
            options.rounds,
            lambda _: {"% of a core": 100 * measure_cpu_share(options.workers, options.seconds)},
        )
        document[_SERIES] = found
        print("", *format_figures(f"series, {options.seconds:g} s a round", found, ["% of a core"]), sep="\n")
    finish(options.json, document)


def _run(name: str, path: Path | None) -> dict[str, float]:
    """Return the time of the loop per item, and the time of the close."""
    source = {"uses": "stagepipe.sources.numbers", "with": {"count": _ITEMS[name]}}
    with Pipeline({"source": source, "stages": PIPELINES[name]}, trace=path) as pipeline:
        items = iter(pipeline)
        next(items)
        began_s = time.perf_counter()
        for item in items:
            del item
        ended_s = time.perf_counter()
        pipeline.close()
        return {"us an item": (ended_s - began_s) / _ITEMS[name] * 1e6, "s": time.perf_counter() - ended_s}


def nap(item: int) -> int:
    """Sleep like a stage that waits for a disk."""
    time.sleep(_NAP_S)
    return item


def measure_cpu_share(workers: int, seconds: float) -> float:
    """Run a pipeline with this number of workers, including the source; return the thread's CPU time per second."""
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


if __name__ == "__main__":
    main(sys.argv[1:])
