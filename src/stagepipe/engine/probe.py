"""Running a probe: the first few items through real workers, within seconds. A Plan in, what was measured out."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from stagepipe.core import RunError
from stagepipe.engine.local import LocalRun
from stagepipe.plan import Plan
from stagepipe.plan.outlook.glimpse import Glimpse
from stagepipe.plan.outlook.probing import probe_plan
from stagepipe.report import RunRecord

_LONG_S = 5.0
"""From when the pipeline is warm; by then a probe has seen enough."""

_LONGEST_S = 60.0
"""From when all workers are ready, the end in any case: what gives nothing till then is shown without figures."""

_WARM = 3
"""With the source's item of this number the second has gone through: the first may load a library on its way."""

_TICK_S = 0.1


class _EnoughError(RunError):
    """The probe has taken long enough."""


@dataclass(frozen=True)
class Probed:
    """A probe's outcome: what was counted, and by process what its items are made of."""

    record: RunRecord
    seen: Mapping[str, Glimpse]


def probe(plan: Plan) -> Probed:
    """Run the plan's stages on its first few items. The sink is not run: what it is given would stay there.

    Raises RunError as the run itself would when a stage fails, and ReadOnceError (one of them) for a source that can
    be read only once.
    """
    run = LocalRun(probe_plan(plan))
    with run, _bounded(run):
        try:
            for item in run.epoch(0):
                del item
        except _EnoughError:
            pass
        seen = run.seen()  # while they live: the kernel forgets with them
    return Probed(run.record(), seen)


@contextmanager
def _bounded(run: LocalRun) -> Iterator[None]:
    """Cut the run off when it has taken long enough."""
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(run, ended), name="stagepipe-probe", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(run: LocalRun, ended: threading.Event) -> None:
    """Cut off some seconds after the pipeline is warm, or long after it was ready."""
    source = run.plan.processes[0].name
    ready_s = warm_s = math.inf
    while not ended.wait(_TICK_S):
        now_s = monotonic()
        if not run.progress().starting:
            ready_s = min(ready_s, now_s)
        if len(run.seen().get(source, Glimpse()).items) >= _WARM:
            warm_s = min(warm_s, now_s)
        if now_s - warm_s > _LONG_S or now_s - ready_s > _LONGEST_S:
            run.cut_off(_EnoughError("the probe has taken long enough"))
            return
