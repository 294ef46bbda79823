"""A turn of benchmarks.start, in its own process: `run_turn("benchmarks.start_turn", {name, started_ns}, limit)`.

`started_ns` is the time (`perf_counter_ns`) at which the parent started this process. Imports stand inside the
functions: they are what is measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

BEGAN_NS = perf_counter_ns()
"""Python has started; nothing of stagepipe is imported."""
_REPEATS = 5
_DEATHS = 2
_RESTART_TIMEOUT_S = 20.0


def import_torch(started_ns: int) -> dict[str, float]:
    """Import torch, as each worker would without a server."""
    import torch  # noqa: F401 - what is measured

    return {"s": _since(started_ns)}


def first_items(started_ns: int, count: int, uses: str = "benchmarks.common.stages.pass_on") -> dict[str, float]:
    """Time the first items of this process's first pipeline of `count` stages, and of later ones."""
    import_ns = perf_counter_ns()
    from stagepipe import Pipeline

    config = {
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 100}},
        "stages": [{"name": f"s{number}", "uses": uses} for number in range(count)],
    }
    imported_ns = perf_counter_ns()
    seconds, caller_cpu_s = [], 0.0
    for _ in range(_REPEATS):
        begin_ns = perf_counter_ns()
        with Pipeline(config) as pipeline:
            next(iter(pipeline))
            seconds.append(_since(begin_ns))
            caller_cpu_s = caller_cpu_s or time.process_time()
            time.sleep(0.1)  # until the last worker waits for items: its end should not disturb the next start
    return {
        "python_s": (BEGAN_NS - started_ns) / 1e9,
        "import_s": (imported_ns - import_ns) / 1e9,
        "first_s": seconds[0],
        "first_with_import_s": seconds[0] + (imported_ns - import_ns) / 1e9,
        "first_with_python_s": seconds[0] + (imported_ns - started_ns) / 1e9,
        "second_s": seconds[1],
        "warm_s": sorted(seconds[1:])[(_REPEATS - 1) // 2],
        "caller_cpu_s": caller_cpu_s,
    }


def restarts(_: int) -> dict[str, float]:
    """Kill a worker twice; time from each death, as its supervisor saw it, until the successor has built its stages."""
    from stagepipe import Pipeline
    from stagepipe.timing import ProcessCounter

    config = {
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 100_000_000}},
        "stages": [{"name": "stage", "uses": "benchmarks.common.stages.tell_pid"}],
    }
    downtimes = [0.0]
    with Pipeline(config) as pipeline:
        items = iter(pipeline)
        run: Any = pipeline._start_local_run()  # noqa: SLF001 - while a run goes on, its report does not tell
        killed: list[int] = []
        while len(killed) < _DEATHS:
            killed.append(next(pid for _item, pid in items if pid not in killed))
            os.kill(killed[-1], signal.SIGKILL)
            deadline_s = time.monotonic() + _RESTART_TIMEOUT_S
            total = downtimes[-1]
            while total == downtimes[-1] and time.monotonic() < deadline_s:
                next(items)
                total = run.regions[1][0][ProcessCounter.DOWNTIME_NS] / 1e9
            downtimes.append(total)
    return {"first_death_s": downtimes[1], "second_death_s": downtimes[2] - downtimes[1]}


def _since(started_ns: int) -> float:
    return (perf_counter_ns() - started_ns) / 1e9


TURNS: dict[str, Callable[[int], dict[str, float]]] = {
    "import torch": import_torch,
    "3 stages": partial(first_items, count=3),
    "14 stages": partial(first_items, count=14),
    "3 torch stages": partial(first_items, count=3, uses="benchmarks.common.torch_parts.add_zero"),
    "restarts": restarts,
}


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(TURNS[job["name"]](job["started_ns"])))
    os._exit(0)  # the figures are out: what follows is not measured
