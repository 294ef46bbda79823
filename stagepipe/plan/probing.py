"""Makes the plan of a probe: a run of the first few items, one at a time, so that each stage is measured alone.

Pure; runs in the caller's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stagepipe.plan.model import Plan, ProcessPlan, SegmentPlan
from stagepipe.spec import Target

_MIN_OUTPUT_GROUPS = 3
"""Groups to get from the last order point. The first one pays for untouched pages; the others are representative."""

_MIN_PROBE_ITEMS = 48
"""Fewer items say too little if their costs vary."""

_MAX_PROBE_ITEMS = 2048
"""More items take too long. The engine also limits the probe's duration."""

_MAX_PART_ITEMS = 8
"""Items of a part for sinks in a probe, or fewer after a `Batch`: a part comes soon. `MeasuredSink` tells the time of a
row from that of a part."""

_MAX_PART_SOURCE_ITEMS = 48
_MEASURED_SINK_PATH: Final = "stagepipe.sinks.MeasuredSink"


def make_probe_plan(plan: Plan, sink_folder: Path = Path()) -> Plan:
    """Copy `plan` with one worker per stage, few items, and one item in flight. Sinks write to `sink_folder`.

    With several items in flight the stages would run at the same time, and on a busy machine each would look slower
    than it is. A stage with `batch` gets a window of two batches: it gathers the next one while it works on the first.
    """
    processes = redirect_sinks([replace(process, workers=1) for process in plan.processes], sink_folder)
    plan = replace(plan, processes=processes)
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


def redirect_sinks(processes: Sequence[ProcessPlan], folder: Path) -> tuple[ProcessPlan, ...]:
    """Copy the processes with small parts, which stand-ins of the sinks with workers write to `folder`."""
    redirected: list[ProcessPlan] = []
    source_items = 1
    multiple = 1
    for process in processes:
        stage = process.first_stage
        if stage.sink_path and stage.is_order_point:
            multiple = stage.target.arguments.get("multiple", 1)
            items = max(min(_MAX_PART_ITEMS, _MAX_PART_SOURCE_ITEMS // source_items), 2)
            items = min(-(-items // multiple) * multiple, stage.items_per_output)
            target = replace(stage.target, arguments={**stage.target.arguments, "max_items": items})
            stage = replace(stage, target=target, items_per_output=items)
        elif stage.sink_path:
            sink = {"uses": stage.target.uses, "with": stage.target.arguments}
            arguments = {"sink": sink, "folder": str(folder), "multiple": multiple}
            stage = replace(stage, target=Target(_MEASURED_SINK_PATH, arguments))
        source_items *= stage.items_per_output
        redirected.append(replace(process, stages=(stage, *process.stages[1:])))
    return tuple(redirected)


def _choose_item_count(plan: Plan) -> int:
    """The number of source items that fill a few groups of the last order point."""
    group_items = 1
    for process in plan.processes:
        group_items *= process.first_stage.items_per_output
    return min(max(_MIN_OUTPUT_GROUPS * group_items, _MIN_PROBE_ITEMS), _MAX_PROBE_ITEMS)
