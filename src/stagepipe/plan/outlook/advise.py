"""Which neighbours are cheaper in one process, and which stage wants how many workers. Pure: costs in, advice out.

Each edit is tried on the foretold pace, and said only if that grows by more than a tenth. Fusing saves a hop and gives
up that two stages work at the same time: it pays where their process is not the limit, or where the machine is full.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from stagepipe.core.units import format_ns
from stagepipe.plan.make import Machine
from stagepipe.plan.outlook.costs import Costs
from stagepipe.plan.outlook.pace import (
    MACHINE,
    Group,
    Layout,
    Pace,
    cpu_ns,
    fits,
    fusions,
    layout_of,
    members,
    name_of,
    pace,
    with_workers,
    work_ns,
)

GAIN = 1.1
"""What an edit must be expected to bring: below a tenth, a run's noise hides it."""

_LITTLE = 1.01
"""Fusing one pair more must bring this, within a step that brings a tenth."""

_AS_GOOD = 0.97
"""Workers that bring less than the rest to this share of the best rate are left out."""

_TIMES_CPUS = 4
"""Workers of a stage that only waits (a network, a disk) are as many times the CPUs at most."""


@dataclass(frozen=True)
class Step:
    """One thing to do: overrides for the command line, words for people, and the rates before and after it."""

    edits: tuple[str, ...]
    words: str
    before_per_s: float
    after_per_s: float


@dataclass(frozen=True)
class Room:
    """What workers may take: the machine, and of its memory the shared part that the run may fill."""

    machine: Machine
    arena_bytes: int


def advise(costs: Costs, workers: tuple[int, ...], room: Room) -> tuple[Step, ...]:
    """What to change, each step on top of those before it; empty if nothing is expected to help by a tenth.

    `workers` are those of the plan, by process.
    """
    layout = layout_of(workers)
    steps: list[Step] = []
    while True:
        now = pace(layout, costs, room.machine)
        best = _best(layout, costs, room)
        then = pace(best, costs, room.machine)
        if then.items_per_s < GAIN * now.items_per_s:
            return tuple(steps)
        edits, words = _edits(layout, best, costs), _words(layout, best, costs)
        steps.append(Step(edits, words, now.items_per_s, then.items_per_s))
        layout = best


def choose_workers(costs: Costs, workers: tuple[int, ...], free: Collection[int], room: Room) -> tuple[int, ...]:
    """The workers of each process, those numbered in `free` chosen: one, or as many as help by more than a tenth."""
    start = layout_of(tuple(1 if number in free else count for number, count in enumerate(workers)))
    best = fill(start, costs, room, free)
    rates = [pace(layout, costs, room.machine).items_per_s for layout in (start, best)]
    return tuple(group.workers for group in (best if rates[1] >= GAIN * rates[0] else start))


@dataclass(frozen=True)
class Fusion:
    """What running one process's stages in the process before it would do: CPU time saved an item, and the pace.

    `why_not` says why it cannot be, or is empty.
    """

    name: str
    into: str
    saved_ns: float
    per_s: float = 0.0
    why_not: str = ""


def each_fusion(costs: Costs, workers: tuple[int, ...], room: Room) -> tuple[Fusion, ...]:
    """Each pair of neighbours, as if it alone were fused, with as many workers as the first of them has now."""
    layout = layout_of(workers)
    fused = dict(fusions(layout, costs))
    return tuple(
        Fusion(
            name=after.name,
            into=before.last,
            saved_ns=costs.hops[number - 1].ns + after.loop_ns,
            per_s=_rate(fused[number], costs, room) if number in fused else 0.0,
            why_not=after.unfusable,
        )
        for number, (before, after) in enumerate(pairwise(costs.processes), 1)
    )


def fill(layout: Layout, costs: Costs, room: Room, free: Collection[int] | None = None) -> Layout:
    """Workers for whoever is the limit, one by one, as far as that can go; then none of those that hardly help.

    `free` are the numbers of the processes that may get some (None: all that can have more than one).
    """
    best, tried = layout, layout
    while True:
        at = _limit(tried, costs, room)
        if at is None or not _may_grow(tried[at], costs, room, free):
            break
        tried = with_workers(tried, at, tried[at].workers + 1)
        if not fits(tried, costs, room.machine, room.arena_bytes):
            break
        if _rate(tried, costs, room) > _rate(best, costs, room):
            best = tried
    return _trimmed(layout, best, costs, room)


def why(costs: Costs, workers: tuple[int, ...], room: Room) -> str:
    """What limits the plan as it stands, in words."""
    layout = layout_of(workers)
    now = pace(layout, costs, room.machine)
    if now.limited_by == MACHINE:
        top = max(layout, key=lambda group: cpu_ns(group, costs))
        share = cpu_ns(top, costs) / now.cpu_ns
        return (
            f"the machine is full: an item takes {format_ns(now.cpu_ns)} of CPU time, "
            f"{share * 100:.0f} % of it in {name_of(top, costs)}"
        )
    at = _limit(layout, costs, room)
    if at is None:
        return "whoever takes the items is the limit"
    group, price = layout[at], format_ns(work_ns(layout[at], costs))
    if any(each.alone for each in members(group, costs)):
        return f"{name_of(group, costs)} is the limit, with {price} an item, and can have one worker only"
    crowd = f" over {group.workers} workers" if group.workers > 1 else ""
    return f"{name_of(group, costs)} is the limit, with {price} an item{crowd}"


def _rate(layout: Layout, costs: Costs, room: Room) -> float:
    return pace(layout, costs, room.machine).items_per_s


def _limit(layout: Layout, costs: Costs, room: Room) -> int | None:
    """The number of the group that sets the pace; None where it is the machine or the consumer."""
    now: Pace = pace(layout, costs, room.machine)
    names = [name_of(group, costs) for group in layout]
    return names.index(now.limited_by) if now.limited_by in names else None


def _may_grow(group: Group, costs: Costs, room: Room, free: Collection[int] | None) -> bool:
    inside = members(group, costs)
    bound = inside[0].most_workers or _TIMES_CPUS * room.machine.cpus
    chosen = free is None or group.first in free
    return chosen and not any(each.alone for each in inside) and group.workers < bound


def _trimmed(least: Layout, layout: Layout, costs: Costs, room: Room) -> Layout:
    """Without the workers that hardly help; nobody goes below what it had."""
    enough = _AS_GOOD * _rate(layout, costs, room)
    for at, group in enumerate(least):
        while layout[at].workers > group.workers:
            fewer = with_workers(layout, at, layout[at].workers - 1)
            if _rate(fewer, costs, room) < enough:
                break
            layout = fewer
    return layout


def _best(layout: Layout, costs: Costs, room: Room) -> Layout:
    """The better of two things to do: fuse, or add workers. Both at once only where neither is as good alone."""
    fused, filled = _fuse(layout, costs, room), fill(layout, costs, room)
    one = max(filled, fused, key=lambda option: _rate(option, costs, room))
    options = [fill(option, costs, room) for _, option in fusions(layout, costs)]
    both = max(options, key=lambda option: _rate(option, costs, room), default=one)
    return both if _rate(both, costs, room) >= GAIN * _rate(one, costs, room) else one


def _fuse(layout: Layout, costs: Costs, room: Room) -> Layout:
    """Neighbours brought together, the best pair first, as long as each helps."""
    while True:
        options = [fused for _, fused in fusions(layout, costs) if fits(fused, costs, room.machine, room.arena_bytes)]
        best = max(options, key=lambda option: _rate(option, costs, room), default=layout)
        if _rate(best, costs, room) < _LITTLE * _rate(layout, costs, room):
            return layout
        layout = best


def _words(before: Layout, after: Layout, costs: Costs) -> str:
    return " ".join(filter(None, (_fusing_words(before, after, costs), _worker_words(before, after, costs))))


def _fusing_words(before: Layout, after: Layout, costs: Costs) -> str:
    """Who moves where, and the price of the hops that fall away."""
    heads = {group.first for group in before} - {group.first for group in after}
    if not heads:
        return ""
    parts = []
    for group in after:
        moved = [costs.processes[number].name for number in range(group.first + 1, group.last + 1) if number in heads]
        if moved:
            parts.append(f"{_listed(moved)} in the process of {name_of(group, costs)}")
    saved_ns = sum(costs.hops[number - 1].ns for number in heads)
    hops = "the hop between them costs" if len(heads) == 1 else "the hops between them cost"
    return f"Run {' and '.join(parts)}: {hops} {format_ns(saved_ns)} an item."


def _worker_words(before: Layout, after: Layout, costs: Costs) -> str:
    had = {group.first: group.workers for group in before}
    parts = [
        f"{name_of(group, costs)} {group.workers} workers instead of {had[group.first]}, as it takes "
        f"{format_ns(work_ns(group, costs))} an item"
        for group in after
        if group.workers != had[group.first]
    ]
    return f"Give {_listed(parts)}." if parts else ""


def _edits(before: Layout, after: Layout, costs: Costs) -> tuple[str, ...]:
    """The overrides that lead from one layout to the other."""
    heads = {group.first: group for group in after}
    edits = []
    for group in before:
        name = name_of(group, costs)
        if group.first not in heads:
            edits.append(f"stages.{name}.fuse=true")
            if group.workers != 1:
                edits.append(f"stages.{name}.workers=null")
            if costs.processes[group.first].own_threads:
                edits.append(f"stages.{name}.threads=null")
        elif heads[group.first].workers != group.workers:
            edits.append(f"stages.{name}.workers={heads[group.first].workers}")
    return tuple(edits)


def _listed(words: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
