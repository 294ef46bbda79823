"""The probe: a run of a plan's stages on its first few items, one at a time, so that each is measured alone. Pure."""

from __future__ import annotations

from dataclasses import replace

from stagepipe.plan.model import Plan, Role, StretchPlan

_BATCHES = 3
"""Groups that should come out of the last order point: the first pays for fresh pages, the others tell."""

_LEAST_ITEMS, _MOST_ITEMS = 48, 2048
"""Fewer tell too little of items that take unlike times; more take too long (the probe is bounded in time as well)."""


def probe_plan(plan: Plan) -> Plan:
    """The same with one worker a stage, few items, and one item under way.

    With several under way the stages would run side by side and, on a full machine, each would seem slower than it is.
    A stage that is called with lists gets whole ones: the next is gathered while one is worked on.
    """
    processes = tuple(replace(process, workers=1) for process in plan.processes)
    windows = [1] * len(plan.stretches)
    for process in processes:
        batch = process.stages[0].batch
        if batch is not None:
            windows[process.reads] = max(windows[process.reads], 2 * batch.size)
    return replace(
        plan,
        processes=processes,
        stretches=tuple(StretchPlan(window, window) for window in windows),
        limit=min(_items(plan), plan.limit or _MOST_ITEMS),
        probe=True,
    )


def _items(plan: Plan) -> int:
    """As many of the source's items as give a few groups at the end."""
    together = 1
    for process in plan.processes:
        size = process.stages[0].target.arguments.get("size", 1)
        if process.role is Role.ORDER_POINT and process.stages[0].target.label.endswith("Batch"):
            together *= size if isinstance(size, int) else 1
    return min(max(_BATCHES * together, _LEAST_ITEMS), _MOST_ITEMS)
