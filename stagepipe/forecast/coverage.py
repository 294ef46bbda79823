"""What a probe has not seen: stages that no item reached, so that the rate is not known. Pure."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from stagepipe.core import format_ns, join_names
from stagepipe.plan import SINK_NAME, Plan, ProcessRole
from stagepipe.report import RunRecord
from stagepipe.timing import Histogram

_MIN_PROBED_ITEMS = 4
"""Fewer items predict nothing: the first is left out, and the others may vary."""

_MIN_STAGE_ITEMS = 2
"""A stage that has had one item when the probe's time was over has not been seen: its first call may load a model."""


def find_missing_items(record: RunRecord) -> str:
    """Say why a probe allows no statement at all; empty if it does."""
    if record.items_in >= _MIN_PROBED_ITEMS:
        return ""
    if _was_cut_short(record):
        return f"the probe's time was over after {record.items_in} items, too few for a forecast"
    return "the source yields too few items for a forecast"


def find_unseen_stages(plan: Plan, record: RunRecord) -> tuple[str, ...]:
    """Return the names of the stages that the probe brought no items to; `sink` if none came out at the end.

    Their cost is not known. If the source has ended, one item is all that a stage gets.
    """
    needed = _MIN_STAGE_ITEMS if _was_cut_short(record) else 1
    stages = {stage.name: stage for stage in record.stages}
    unseen = []
    for process in plan.processes[1:]:
        is_grouping = process.role is ProcessRole.ORDER_POINT or process.first_stage.sink_path
        unseen += [stage.name for stage in process.stages if stages[stage.name].items < (1 if is_grouping else needed)]
    return (*unseen, *(() if record.items_out else (SINK_NAME,)))


def drop_stages(record: RunRecord, names: Collection[str]) -> RunRecord:
    """Copy the record as if these stages took no time: it then bounds the rate from above."""
    stages = (
        replace(stage, items=0, busy_ns=0, repeated_ns=0, run_histogram=Histogram()) if stage.name in names else stage
        for stage in record.stages
    )
    return replace(record, stages=tuple(stages))


def describe_unseen(record: RunRecord, names: tuple[str, ...], probed_s: float) -> str:
    """Say which stages saw no item, and what ended the probe.

    >>> describe_unseen(record, ("model",), 60.0)  # doctest: +SKIP
    'model saw no item in 60 s and 12,000 source items'
    """
    subject = "nothing came out at the end" if names == (SINK_NAME,) else _describe_stages(record, names)
    items = f"{record.items_in:,} source items"
    time = f"{format_ns(probed_s * 1e9)} and {items}" if _was_cut_short(record) else f"all {items}"
    return f"{subject} in {time}"


def _describe_stages(record: RunRecord, names: tuple[str, ...]) -> str:
    stages = [name for name in names if name != SINK_NAME]
    seen = max(stage.items for stage in record.stages if stage.name in stages)
    return f"{join_names(stages)} saw {'too few items' if seen else 'no item'}"


def _was_cut_short(record: RunRecord) -> bool:
    return record.status != "finished"
