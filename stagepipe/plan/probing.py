"""Makes the plan of a probe: a run of the first few items, one at a time, so that each stage is measured alone.

Pure; runs in the caller's process.
"""

from __future__ import annotations

from dataclasses import replace

from stagepipe.plan.model import Plan, SegmentPlan

_MIN_OUTPUT_GROUPS = 3
"""Groups to get from the last order point. The first one pays for untouched pages; the others are representative."""

_MIN_PROBE_ITEMS = 48
"""Fewer items say too little if their costs vary."""

_MAX_PROBE_ITEMS = 2048
"""More items take too long. The engine also limits the probe's duration."""


def make_probe_plan(plan: Plan) -> Plan:
    """Copy `plan` with one worker per stage, few items, and one item in flight.

    With several items in flight the stages would run at the same time, and on a busy machine each would look slower
    than it is. A stage with `batch` gets a window of two batches: it gathers the next one while it works on the first.
    """
    processes = tuple(replace(process, workers=1) for process in plan.processes)
    windows = [1] * len(plan.segments)
    for process in processes:
        batch = process.stages[0].batch
        if batch is not None:
            windows[process.input_segment] = max(windows[process.input_segment], 2 * batch.size)
    return replace(
        plan,
        processes=processes,
        segments=tuple(SegmentPlan(window, window) for window in windows),
        limit=min(_choose_item_count(plan), plan.limit or _MAX_PROBE_ITEMS),
        is_probe=True,
    )


def _choose_item_count(plan: Plan) -> int:
    """The number of source items that fill a few groups of the last order point."""
    group_items = 1
    for process in plan.processes:
        group_items *= process.first_stage.items_per_output
    return min(max(_MIN_OUTPUT_GROUPS * group_items, _MIN_PROBE_ITEMS), _MAX_PROBE_ITEMS)
