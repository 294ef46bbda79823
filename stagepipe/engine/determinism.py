"""Runs the first few items several times and finds the first stage whose output differs.

Random numbers of C libraries cannot be seeded from outside, but differences in the output can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Final, Literal

from stagepipe.core import Key
from stagepipe.engine.local import LocalRun
from stagepipe.engine.probe import ProbeTimeLimitError, limit_duration
from stagepipe.plan import Plan, split_source
from stagepipe.runtime import ItemDigestEvent, format_key
from stagepipe.spec import SOURCE_NAME, PipelineSpec

CHECKED_ITEMS: Final = 8
"""Source items in each run: enough for two workers to get several each."""

_MAX_RUNS_OF_TWO: Final = 3
"""Maximum runs with two workers. On a busy machine, one worker may take all items before the other one starts."""

_MAX_EVENT_WAIT_S: Final = 2.0
"""Maximum wait for the last digests after all items have arrived, because they travel separately."""


@dataclass(frozen=True)
class _RecordedRun:
    """The output digests of each process for each item, by process name, and whether the run took too long."""

    digests: Mapping[str, Mapping[Key, ItemDigestEvent]]
    is_cut: bool


@dataclass(frozen=True)
class Nondeterminism:
    """The first stage whose output differs. `stages` are all stages of its process: the stage and its fused stages.

    `item` is the item's number, with a part number for a part of a generator: "17.3". `between` says which runs differ.
    """

    stages: tuple[str, ...]
    item: str
    between: Literal["runs", "workers"]

    def __str__(self) -> str:
        """Return the difference, and how to fix it."""
        name, *fused = self.stages
        where = (name if name == SOURCE_NAME else f"stage {name}") + (
            f" (with {', '.join(fused)} fused to it)" if fused else ""
        )
        runs = "from run to run" if self.between == "runs" else "between 1 and 2 workers"
        return (
            f"{where}, item {self.item}: the output differs {runs}; draw from `stagepipe.context().rng`, seed "
            "libraries that have their own generators with a number from it, and keep no state between items"
        )


def find_nondeterminism(spec: PipelineSpec, make_plan: Callable[[PipelineSpec], Plan]) -> Nondeterminism | None:
    """Run the first items twice with one worker per stage and once with two, and return the first difference.

    Each worker has its own interpreter, as in separate runs. Forked workers would share state such as a hash seed.

    The sink does not run. Raises RunError if a stage fails, and ReadOnceError if the source can be read only once.
    """
    spec = split_source(spec)
    plan = make_plan(_with_workers(spec, 1))
    first = _record_run(plan)
    if difference := _find_difference(plan, first, _record_run(plan), "runs"):
        return difference
    plan = make_plan(_with_workers(spec, 2))
    for _ in range(_MAX_RUNS_OF_TWO):
        second = _record_run(plan)
        difference = _find_difference(plan, first, second, "workers")
        if difference or second.is_cut or _used_all_workers(plan, second):
            return difference
    return None


def _used_all_workers(plan: Plan, run: _RecordedRun) -> bool:
    """Return whether each worker sent an item, as far as there were enough items."""
    for process in plan.processes:
        events = run.digests.get(process.name, {})
        if len({event.worker for event in events.values()}) < min(process.workers, len(events)):
            return False
    return True


def _with_workers(spec: PipelineSpec, workers: int) -> PipelineSpec:
    stages = tuple(
        replace(
            stage,
            workers=1 if stage.fuse is True or stage.is_order_point or stage.stateful else workers,
            worker_bounds=None,
        )
        for stage in spec.stages
    )
    return replace(spec, stages=stages, order="source", start="spawn")


def _record_run(plan: Plan) -> _RecordedRun:
    limit = min(CHECKED_ITEMS, plan.limit or CHECKED_ITEMS)
    run = LocalRun(replace(plan, limit=limit, records_digests=True))
    items = 0
    is_cut = False
    with run, limit_duration(run):
        try:
            for item in run.iter_epoch(0):
                del item
                items += 1
        except ProbeTimeLimitError:
            is_cut = True
        _wait_for_events(run, plan.processes[-1].name, items)
    return _RecordedRun(run.item_digests, is_cut)


def _wait_for_events(run: LocalRun, last_process: str, items: int) -> None:
    deadline_s = monotonic() + _MAX_EVENT_WAIT_S
    while len(run.item_digests.get(last_process, {})) < items and monotonic() < deadline_s:
        sleep(0.01)


def _find_difference(
    plan: Plan, first: _RecordedRun, second: _RecordedRun, between: Literal["runs", "workers"]
) -> Nondeterminism | None:
    for process in plan.processes:
        first_digests, second_digests = (run.digests.get(process.name, {}) for run in (first, second))
        is_cut = first.is_cut or second.is_cut
        keys = first_digests.keys() & second_digests if is_cut else first_digests.keys() | second_digests
        for key in sorted(keys):
            if _digest_of(first_digests, key) != _digest_of(second_digests, key):
                names = tuple(dict.fromkeys(stage.row for stage in process.stages))
                return Nondeterminism(names, format_key(key), between)
    return None


def _digest_of(events: Mapping[Key, ItemDigestEvent], key: Key) -> bytes | None:
    return events[key].digest if key in events else None
