"""Running a probe: the first few items through real workers, within seconds. A Plan in, what was measured out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from stagepipe.core import RunError
from stagepipe.engine.local import LocalRun
from stagepipe.plan import Plan, Role
from stagepipe.plan.glimpse import Glimpse
from stagepipe.plan.probing import probe_plan
from stagepipe.report import RunRecord

_LONG_S = 5.0
"""From when all workers are ready; by then a probe has seen enough, if each stage has given something."""

_LONGEST_S = 30.0
"""The end in any case: a stage that gives nothing for so long is shown without figures."""

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
    return Probed(run.record(), run.seen())


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
    ready_s: float | None = None
    while not ended.wait(_TICK_S):
        if ready_s is None:
            ready_s = None if run.progress().starting else monotonic()
            continue
        spent_s = monotonic() - ready_s
        if spent_s > _LONGEST_S or (spent_s > _LONG_S and _all_told(run)):
            run.cut_off(_EnoughError("the probe has taken long enough"))
            return


def _all_told(run: LocalRun) -> bool:
    """Whether each process up to the first order point, which gathers items, has sent something."""
    told = run.seen()
    for process in run.plan.processes:
        if process.role is Role.ORDER_POINT:
            return True
        if process.name not in told:
            return False
    return True
