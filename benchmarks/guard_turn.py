"""One turn of benchmarks.guard, with the stagepipe that PYTHONPATH names: `python -c "import guard_turn; ..." CASE`.

It measures the processor time of all processes per item, or wall time in the case `alone`, in microseconds. It imports
nothing from the package `benchmarks`, because the other tree has another version of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil

import stagepipe

_IMAGE_BYTES = 3 * 224 * 224 * 8
CASES = {"small": 60_000, "image": 2_500, "stage": 40_000, "batch": 200_000, "alone": 1_500}
"""The number of items of each case: about 1 s of work."""
WALL_CASES = ("alone",)
_IDLE_S = 0.0005
"""Pause before each item of `alone`: longer than a process spins or polls, so that it sleeps and must be woken."""
_WARM_UP_SHARE = 0.25


class Items:
    """Dicts {id, label}, or {id, label, image} with an image of `nbytes` bytes; one every `idle_s`."""

    def __init__(self, count: int, nbytes: int = 0, idle_s: float = 0.0) -> None:
        self._count, self._idle_s = count, idle_s
        self._image = {"image": np.ones(nbytes, np.uint8)} if nbytes else {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self._count):
            if self._idle_s:
                time.sleep(self._idle_s)
            yield {"id": number, "label": number % 1000, **self._image}


class Samples:
    """A dataset of dicts {id, label}."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "label": index % 1000}


def pass_on(item: Any) -> Any:
    """Return the item: a stage that does nothing."""
    return item


def make_config(case: str) -> dict[str, Any]:
    """Return the config of a case: see `python -m benchmarks.guard --help`."""
    extra: dict[str, dict[str, Any]] = {"image": {"nbytes": _IMAGE_BYTES}, "alone": {"idle_s": _IDLE_S}}
    values: dict[str, Any] = {"count": CASES[case], **extra.get(case, {})}
    source: dict[str, Any] = {"uses": "guard_turn.Items", "with": values}
    stages: list[dict[str, Any]] = []
    if case == "stage":
        stages = [{"name": "pass_on", "uses": "guard_turn.pass_on"}]
    if case == "batch":
        source = {"uses": "stagepipe.sources.dataset", "with": {"dataset": "guard_turn.Samples", "with": values}}
        stages = [{"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": 256}}]
    return {"name": case, "source": source, "stages": stages}


def measure_us(case: str) -> float:
    """Return the CPU microseconds per item in the steady state; for `alone`, the wall time."""
    measure_s = time.monotonic if case in WALL_CASES else _measure_cpu_s
    with stagepipe.Pipeline(make_config(case)) as pipeline:
        samples, begin, warm_up = 0, (0, 0.0), CASES[case] * _WARM_UP_SHARE
        for item in pipeline:
            samples += 256 if case == "batch" else 1
            if not begin[0] and samples >= warm_up:
                begin = (samples, measure_s())
            last = item
        assert last is not None
        used_s = measure_s() - begin[1]
    return used_s / (samples - begin[0]) * 1e6


def _measure_cpu_s() -> float:
    """Read the clocks of all processes (clock_getcpuclockid(3)), which are still alive at the end of the data."""
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)
