"""An inline run: all stages in one process, one after the other. What takes the time, and what processes could give."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from stagepipe.core import format_ns, format_percent
from stagepipe.report.limits.evidence import MAX_CONFIDENCE, Evidence, capitalize
from stagepipe.report.model import Verdict
from stagepipe.report.record import RunRecord

_HANDING_NS = 30_000
"""What it takes to hand a small item to another process and to take it there: 20 to 40 us on two busy CPUs."""

_MIN_GAIN = 1.2
"""A smaller gain at the most is not worth the processes."""

_MIN_CPU_SHARE = 0.6
"""With less of a CPU, the time between the stages' calls is not what the calls cost."""


class _Part(NamedTuple):
    """What takes a part of the time: a row of the report, or the loop that takes the items."""

    name: str
    kind: str
    subject: str
    busy_ns: int


def judge_one_process(evidence: Evidence) -> Verdict | None:
    """Judge an inline run; None for any other. Processes are no setting of the config, so there is no `fix`."""
    record = evidence.record
    if not record.is_inline:
        return None
    parts = _list_parts(record)
    work_ns = sum(part.busy_ns for part in parts)
    total_ns = max(record.consumer.wait_ns + record.consumer.busy_ns, work_ns, 1)
    most = max(parts, key=lambda part: part.busy_ns)
    if total_ns - work_ns > most.busy_ns:
        return _judge_small_stages(record, most, work_ns, total_ns)
    items = max(record.items_in, 1)
    share = most.busy_ns / total_ns
    subject = most.name if most.kind == "stage" else capitalize(most.subject)
    return Verdict(
        limited_by=most.name,
        kind=most.kind,
        confidence=round(MAX_CONFIDENCE * share, 2),
        sentence=f"{subject} took {format_percent(share)} of the time: {format_ns(most.busy_ns // items)} of "
        f"{format_ns(total_ns // items)} an item. All stages ran in this process, one after the other.",
        advice=_advise(record, most, work_ns),
        share=share,
    )


def _list_parts(record: RunRecord) -> list[_Part]:
    """List the rows of the report and the consumer."""
    busy_ns: Counter[str] = Counter()
    kinds: dict[str, str] = {}
    for stage in record.stages:
        row = stage.part_of or stage.name
        busy_ns[row] += stage.busy_ns
        kinds.setdefault(row, "source" if stage is record.stages[0] else "sink" if stage.is_sink else "stage")
    subjects = {"source": "the source", "sink": "the sink {}", "stage": "{}"}
    parts = [_Part(row, kind, subjects[kind].format(row), busy_ns[row]) for row, kind in kinds.items()]
    consumer = record.consumer
    kind, subject = ("sink", "the sink {}") if consumer.is_sink else ("consumer", "the {}")
    return [*parts, _Part(consumer.name, kind, subject.format(consumer.name), consumer.busy_ns)]


def _judge_small_stages(record: RunRecord, most: _Part, work_ns: int, total_ns: int) -> Verdict:
    """Judge a run of which most of the time lies between the calls of its stages."""
    items = max(record.items_in, 1)
    own_ns = total_ns - work_ns
    cpu_share = min(record.caller_cpu_ns / total_ns, 1.0)
    sentence = (
        f"The stages are small: an item takes {format_ns(work_ns // items)} of work in all of them, and "
        f"{format_ns(own_ns // items)} to call, time and seed them one after the other in this process."
    )
    advice = _advise(record, most, work_ns)
    if 0 < cpu_share < _MIN_CPU_SHARE:
        sentence = (
            f"No stage is the limit: this process had a CPU for {format_percent(cpu_share)} of the time; other "
            "programs took the rest."
        )
        advice = "No config change to suggest: run it again when the machine is less busy."
    return Verdict(
        limited_by="",
        kind="none",
        confidence=round(MAX_CONFIDENCE * own_ns / total_ns, 2),
        sentence=sentence,
        advice=advice,
    )


def _advise(record: RunRecord, most: _Part, work_ns: int) -> str:
    """Say what processes could give: the slowest of them sets the pace, and each item is handed over."""
    if record.cpus == 1:
        return "No config change to suggest: with one CPU, processes would not be faster."
    if work_ns < _HANDING_NS * max(record.items_in, 1):
        return (
            f"Processes would not be faster: handing an item over takes about {format_ns(_HANDING_NS)}, more than all "
            "work on it."
        )
    gain = min(work_ns / max(most.busy_ns, 1), record.cpus)
    if gain >= _MIN_GAIN:
        return (
            f"Without `inline` the stages run at the same time: at most {gain:.1f} times as fast with one worker each, "
            f"because {most.subject} sets the pace. `stagepipe plan` measures what more workers give."
        )
    more = (
        f"more `workers` of {most.name} could be, and `stagepipe plan` measures it"
        if most.kind == "stage"
        else "make it cheaper"
    )
    return f"Processes with one worker each would not be faster, because {most.subject} takes nearly all of it; {more}."
