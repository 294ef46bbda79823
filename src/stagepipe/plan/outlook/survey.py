"""From a plan and its probe to the outlook: each hop's pieces and their modes, costs, memory, advice. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stagepipe.plan.make import Machine
from stagepipe.plan.model import HopPlan, Plan
from stagepipe.plan.outlook import model as words
from stagepipe.plan.outlook.advise import Room, advise, choose_workers, each_fusion, why
from stagepipe.plan.outlook.costs import Costs, costs_of, pickling, run_ns
from stagepipe.plan.outlook.freight import Freight, freight_of
from stagepipe.plan.outlook.glimpse import Glimpse
from stagepipe.plan.outlook.pace import layout_of, pace
from stagepipe.report import HopRecord, RunRecord

FEW_ITEMS = 4
"""Fewer foretell nothing: the first of them is left out, and the rest may be as unlike."""

TOO_FEW = "the source gives too few items to foretell a pace"

_UNSEEN = "no item came so far in the probe"


def outlook_of(
    plan: Plan, record: RunRecord, seen: Mapping[str, Glimpse], machine: Machine, chosen: tuple[str, ...] = ()
) -> words.Outlook:
    """The outlook of `plan` from the `record` of its probe and what the probe has `seen`, by process."""
    costs = costs_of(plan, record, seen)
    workers = tuple(process.workers for process in plan.processes)
    room = Room(machine, plan.memory_bytes)
    now = pace(layout_of(workers), costs, machine)
    enough = record.items_in >= FEW_ITEMS
    return words.Outlook(
        name=plan.name,
        config_sha256=plan.config_sha256,
        machine=words.Machine(machine.cpus, machine.memory_bytes),
        items=record.items_in,
        stages=_stages(plan, record, costs, room),
        hops=_hops(plan, record, seen),
        memory=words.Memory(now.memory_bytes, plan.memory_bytes),
        items_per_s=now.items_per_s if enough else 0.0,
        limited_by=now.limited_by if enough else "",
        reason=why(costs, workers, room) if enough else TOO_FEW,
        fusions=tuple(
            words.Fusion(each.name, each.into, int(each.saved_ns), each.per_s, each.why_not)
            for each in (each_fusion(costs, workers, room) if enough else ())
        ),
        advice=tuple(
            words.Advice(step.edits, step.words, step.before_per_s, step.after_per_s)
            for step in (advise(costs, workers, room) if enough else ())
        ),
        chosen=chosen,
    )


def _stages(plan: Plan, record: RunRecord, costs: Costs, room: Room) -> tuple[words.Stage, ...]:
    numbers = range(len(plan.processes))
    wanted = choose_workers(costs, tuple(1 for _ in numbers), numbers, room)
    records = {stage.name: stage for stage in record.stages}
    items = max(record.items_in, 1)
    found = []
    for process, cost, wants in zip(plan.processes, costs.processes, wanted, strict=True):
        for stage in process.stages:
            first, mine = stage is process.stages[0], records[stage.name]
            found.append(
                words.Stage(
                    name=stage.name,
                    uses=stage.target.label,
                    process=process.name,
                    workers=process.workers,
                    wants=wants,
                    run_ns=int(run_ns(mine, process) * cost.undisturbed),
                    items=round(mine.items / items, 4),
                    cpu_ns=int(cost.cpu_ns) if first else 0,
                    memory_bytes=cost.memory_bytes if first else 0,
                )
            )
    return tuple(found)


def _hops(plan: Plan, record: RunRecord, seen: Mapping[str, Glimpse]) -> tuple[words.Hop, ...]:
    records = {hop.source: hop for hop in record.hops}
    items, found = max(record.items_in, 1), []
    for process, hop in zip(plan.processes, plan.hops, strict=True):
        for before, after in zip(process.stages, process.stages[1:], strict=False):
            found.append(words.Hop(before.name, after.name, "local", 0, "fused: a call"))
        last = process.stages[-1].name
        found.append(_hop(plan, hop, records[last], seen.get(process.name, Glimpse()), items))
    return tuple(found)


def _hop(plan: Plan, hop: HopPlan, record: HopRecord, seen: Glimpse, items: int) -> words.Hop:
    threshold = hop.threshold_bytes if hop.mode == "auto" else 0
    freight = freight_of(hop, seen, plan.curves)
    if freight is None:
        return words.Hop(record.source, hop.target, hop.mode, threshold, f"{hop.reason}; {_UNSEEN}")
    pickling_ns = int(pickling(record).ns)
    decision = freight.decision
    return words.Hop(
        source=record.source,
        target=hop.target,
        mode=hop.mode,
        threshold_bytes=threshold,
        reason=decision.reason,
        messages=round(sum(record.messages.values()) / items, 4),
        pickle_bytes=freight.pickle_bytes,
        pickle_mode=freight.pickle_mode,
        pieces=_pieces(freight),
        cost=words.Cost(
            ns=pickling_ns + decision.cost_ns,
            pipe_ns=pickling_ns + decision.pipe_ns,
            shared_memory_ns=pickling_ns + decision.shared_memory_ns,
            pickling_ns=pickling_ns,
        ),
    )


def _pieces(freight: Freight) -> tuple[words.Piece, ...]:
    """The largest first."""
    found = [
        words.Piece(
            name=each.name,
            nbytes=each.nbytes,
            least_bytes=each.least_bytes,
            most_bytes=each.most_bytes,
            dtype=each.dtype,
            shape=each.shape,
            in_arena=each.in_arena,
            mode=each.mode,
            pipe_ns=each.alone.pipe_ns if each.alone else 0,
            shared_memory_ns=each.alone.shared_memory_ns if each.alone else 0,
        )
        for each in freight.pieces
    ]
    return tuple(sorted(found, key=lambda piece: -piece.nbytes))
