"""One contestant, in its own process: `python -m benchmarks.start_child NAME STARTED_NS [ARGUMENT]` prints JSON.

STARTED_NS is the time (`perf_counter_ns`) at which the parent started this process. Imports stand inside the functions:
they are what is measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from time import perf_counter_ns
from typing import Any

BEGAN_NS = perf_counter_ns()
"""Python has started; nothing of stagepipe is imported."""
_REPEATS = 5
_DEATHS = 2
_RESTART_TIMEOUT_S = 20.0
_STEADY_ITEMS = 12
"""Items before memory is measured: each worker has had some."""


def import_torch(_: str) -> dict[str, float]:
    """Import torch, as each worker would without a server."""
    import torch

    return {"s": _since(_STARTED_NS), "version": float(".".join(torch.__version__.split(".")[:2]))}


def first_items(stages: str) -> dict[str, float]:
    """Time the first items of this process's first pipeline and of later ones: of "3", "14" or "3 torch" stages."""
    count, _, kind = stages.partition(" ")
    import_ns = perf_counter_ns()
    from stagepipe import Pipeline

    config = {
        "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 100}},
        "stages": [
            {
                "name": f"s{number}",
                "uses": "benchmarks.common.torch_parts.add_zero" if kind else "benchmarks.common.stages.pass_on",
            }
            for number in range(int(count))
        ],
    }
    imported_ns = perf_counter_ns()
    seconds, caller_cpu_s = [], 0.0
    for _ in range(_REPEATS):
        started_ns = perf_counter_ns()
        with Pipeline(config) as pipeline:
            next(iter(pipeline))
            seconds.append(_since(started_ns))
            caller_cpu_s = caller_cpu_s or time.process_time()
            time.sleep(0.1)  # until the last worker waits for items: its end should not disturb the next start
    return {
        "python_s": (BEGAN_NS - _STARTED_NS) / 1e9,
        "import_s": (imported_ns - import_ns) / 1e9,
        "first_s": seconds[0],
        "first_with_import_s": seconds[0] + (imported_ns - import_ns) / 1e9,
        "first_with_python_s": seconds[0] + (imported_ns - _STARTED_NS) / 1e9,
        "second_s": seconds[1],
        "warm_s": sorted(seconds[1:])[(_REPEATS - 1) // 2],
        "caller_cpu_s": caller_cpu_s,
    }


def restarts(_: str) -> dict[str, float]:
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
                total = run.take_snapshot().workers[1].counters[ProcessCounter.DOWNTIME_NS] / 1e9
            downtimes.append(total)
    return {"first_death_s": downtimes[1], "second_death_s": downtimes[2] - downtimes[1]}


def memory(contestant: str) -> dict[str, float]:
    """Return the memory of the process tree in steady state. "stagepipe 400": with models of 400 MB."""
    from benchmarks.common.usage import measure_pss_bytes

    name, _, megabytes = contestant.rpartition(" ")
    feed = _make_models(name, int(megabytes) * 1_000_000)
    started_ns = perf_counter_ns()
    items = iter(feed)
    next(items)
    first_s = _since(started_ns)
    for _ in range(_STEADY_ITEMS):
        next(items)
    return {"pss_mb": measure_pss_bytes() / 1e6, "first_item_s": first_s}


def _make_models(name: str, model_bytes: int) -> Any:
    import torch

    from benchmarks.loader import models
    from benchmarks.loader.models import EpochSampler, ThreeModels

    torch.set_num_threads(1)
    if name == "stagepipe":
        from stagepipe.torch import Loader

        return Loader(models.config(1_000_000, model_bytes))
    return torch.utils.data.DataLoader(
        ThreeModels(model_bytes, eager=name == "inherited"),
        batch_size=None,
        sampler=EpochSampler(1_000_000),
        num_workers=models.COUNT,
        multiprocessing_context="spawn" if name == "spawned" else "fork",
    )


def _since(started_ns: int) -> float:
    return (perf_counter_ns() - started_ns) / 1e9


if __name__ == "__main__":
    _STARTED_NS = int(sys.argv[2])
    measure = {"torch": import_torch, "first": first_items, "restarts": restarts, "memory": memory}[sys.argv[1]]
    print(json.dumps(measure(sys.argv[3] if len(sys.argv) > 3 else "")), flush=True)
    os._exit(0)  # the figures are out: what follows is not measured, and DataLoader's workers end with this process
