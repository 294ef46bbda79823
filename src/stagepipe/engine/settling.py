"""What a config leaves to the machine: `workers: auto`, chosen from a probe; and the outlook of `stagepipe plan`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stagepipe.config import PipelineSpec
from stagepipe.core import ReadOnceError
from stagepipe.core.units import format_ns
from stagepipe.engine.probe import Probed, probe
from stagepipe.plan import Plan, this_machine
from stagepipe.plan.outlook.advise import Room, choose_workers, why
from stagepipe.plan.outlook.costs import Costs, costs_of
from stagepipe.plan.outlook.model import Outlook
from stagepipe.plan.outlook.pace import layout_of, work_ns
from stagepipe.plan.outlook.survey import FEW_ITEMS, TOO_FEW, outlook_of

Planned = Callable[[PipelineSpec], Plan]
"""Makes the plan of a spec on this machine."""


@dataclass(frozen=True)
class Settled:
    """A spec in which every `workers` is a number, and what was chosen, a line a stage; the probe if there was one."""

    spec: PipelineSpec
    chosen: tuple[str, ...] = ()
    probed: Probed | None = None


def settle(spec: PipelineSpec, planned: Planned, *, inline: bool) -> Settled:
    """Choose what `workers: auto` leaves open: from a probe, within the machine's processors and memory.

    Inline it is 1, as there is one process. So it is where the source can be read only once: a probe would take its
    first items away from the run. Raises RunError, as the run would, if a stage fails in the probe.
    """
    autos = [stage.name for stage in spec.stages if stage.workers == "auto"]
    if not autos:
        return Settled(spec)
    if inline:
        return Settled(_with_workers(spec, dict.fromkeys(autos, 1)))
    plan = planned(spec)
    try:
        probed = probe(plan)
    except ReadOnceError:
        return _ones(spec, autos, "the source can be read only once, so that there is nothing to probe")
    if probed.record.items_in < FEW_ITEMS:
        return _ones(spec, autos, TOO_FEW)
    costs = costs_of(plan, probed.record, probed.seen)
    room = Room(this_machine(), plan.memory_bytes)
    names = [process.name for process in plan.processes]
    workers = tuple(process.workers for process in plan.processes)
    found = choose_workers(costs, workers, {names.index(name) for name in autos}, room)
    by_name = dict(zip(names, found, strict=True))
    return Settled(
        _with_workers(spec, {name: by_name[name] for name in autos}),
        tuple(_line(names.index(name), costs, found, room) for name in autos),
        probed,
    )


def look_ahead(settled: Settled, planned: Planned) -> Outlook:
    """The outlook of a settled spec. Raises RunError as the run would, and ReadOnceError for such a source."""
    plan = planned(settled.spec)
    probed = settled.probed or probe(plan)
    return outlook_of(plan, probed.record, probed.seen, this_machine(), settled.chosen)


def _ones(spec: PipelineSpec, names: list[str], reason: str) -> Settled:
    chosen = tuple(f"{name}: 1 worker (auto): {reason}" for name in names)
    return Settled(_with_workers(spec, dict.fromkeys(names, 1)), chosen)


def _with_workers(spec: PipelineSpec, workers: dict[str, int]) -> PipelineSpec:
    stages = tuple(replace(stage, workers=workers.get(stage.name, stage.workers)) for stage in spec.stages)
    return replace(spec, stages=stages)


def _line(at: int, costs: Costs, workers: tuple[int, ...], room: Room) -> str:
    """`decode: 2 workers (auto): 3.9 ms an item; with these, the machine is full: ...`."""
    count = workers[at]
    taken = format_ns(work_ns(layout_of(workers)[at], costs))
    name = costs.processes[at].name
    return f"{name}: {count} worker{'' if count == 1 else 's'} (auto): {taken} an item; {why(costs, workers, room)}"
