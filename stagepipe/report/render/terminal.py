"""Draws a report on the terminal: tables, events and the verdict. Runs in the process of `stagepipe run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
from rich.console import ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stagepipe.core import format_bytes, format_ns, format_percent, format_rate
from stagepipe.report.comparison import Comparison, Difference
from stagepipe.report.model import HopReport, Percentiles, Report, RunReport, StageReport
from stagepipe.report.record import COUNT_COLUMNS, PHASES, ConsumerReport, CountColumn, WhatIf, format_gain
from stagepipe.report.render.tables import (
    SHARE_STYLES,
    FoldingTable,
    TableColumn,
    TerminalView,
    TitledBox,
    WrappedText,
    draw_legend,
    draw_share_bar,
    make_store_hop_columns,
    make_store_node_columns,
)
from stagepipe.report.utilization import (
    CONSUMER,
    format_count,
    format_worker_change,
    format_worker_numbers,
    list_worker_numbers,
)

_SHARE_BAR_CHARS = 12
"""Width of the bar that shows how a stage spent its time, in characters."""

_MESSAGE_COUNT_COLUMNS = (
    ("call", "local"),
    ("pipe", "pipe"),
    ("memory", "shared_memory"),
    ("mixed", "mixed"),
    ("store", "object_store"),
)
"""Message counts of a hop: column heading, and field of `MessageCounts`."""

_FAILURES = tuple(each for each in COUNT_COLUMNS if each.is_failure)
_OTHER_COUNTS = tuple(each for each in COUNT_COLUMNS if each.heading and not each.is_failure)

_MAX_EVENT_ROWS = 5
"""Maximum number of rows in each list of events. The JSON has all of them."""

_STATUS_STYLES = {"finished": "green", "failed": "red", "interrupted": "yellow"}


def render_brief(report: Report, more: str = "") -> RenderableType:
    """Return the verdict, one table of stages, and the number of each failure. `more` says how to see the rest.

    >>> Console().print(render_brief(report, more="hops and slowest items: -v"))  # doctest: +SKIP
    """
    return TerminalView(partial(_draw_brief, report, more))


def render_report(report: Report) -> RenderableType:
    """Return the whole report for `rich.console.Console.print`: run, stages, hops, events and verdict.

    It fits into 80 columns, and uses the width of a wider terminal.

    >>> Console().print(render_report(report))  # doctest: +SKIP
    """
    return TerminalView(partial(_draw_report, report))


def _draw_report(report: Report, options: ConsoleOptions) -> Iterator[RenderableType]:
    ascii_only = options.ascii_only
    yield from _render_run(report)
    if report.stages:
        yield Text()
        yield FoldingTable("Stages", _build_stage_columns(report.stages, ascii_only=ascii_only))
        yield draw_legend(ascii_only=ascii_only)
        yield from map(WrappedText, report.make_unmatched_notes())
        failing_stages = [stage for stage in report.stages if any(getattr(stage, each.field) for each in _FAILURES)]
        if failing_stages:
            yield Text()
            yield FoldingTable("Failures", _build_failure_columns(failing_stages))
    if report.hops:
        labels = [_format_hop(hop, ascii_only=ascii_only) for hop in report.hops]
        yield Text()
        yield FoldingTable("Hops", _build_hop_columns(report.hops, labels))
        yield from _render_transport_reasons(report.hops, labels)
        phases = _build_phase_columns(report.hops, labels)
        if len(phases) > 1:
            yield Text()
            yield FoldingTable("Phases per message, p50", phases)
    yield from _render_object_store(report, ascii_only=ascii_only)
    if report.what_if:
        yield Text()
        yield FoldingTable("What if (estimates)", _build_what_if_columns(report))
    yield from _render_event_list("Changes of workers", list(_format_worker_changes(report, ascii_only=ascii_only)))
    yield from _render_events(report)
    yield Text()
    yield _render_verdict(report)


def _draw_brief(report: Report, more: str, options: ConsoleOptions) -> Iterator[RenderableType]:
    ascii_only = options.ascii_only
    yield from _render_heading(report, msgspec.structs.replace(report.run, first_item_ns=0))
    if report.stages:
        yield Text()
        yield FoldingTable("", _build_stage_columns(report.stages, ascii_only=ascii_only, is_brief=True))
        yield draw_legend(ascii_only=ascii_only)
    yield from map(WrappedText, [*report.make_unmatched_notes(), *_count_events(report, ascii_only=ascii_only)])
    yield _render_verdict(report)
    if more:
        yield Text(more, style="dim")


def _count_events(report: Report, *, ascii_only: bool) -> Iterator[str]:
    """Yield a line for the changes of workers, and one for each kind of failure: its number and an example."""
    numbers = list_worker_numbers(report.worker_changes)
    if numbers:
        arrow = "->" if ascii_only else "→"
        shown = "; ".join(f"{stage} {format_worker_numbers(each, arrow)}" for stage, each in numbers.items())
        last_ns = max(change.at_ns for change in report.worker_changes if not change.failure)
        yield f"workers: {shown}; the last change after {format_ns(last_ns)}"
    if report.dead_letters:
        letter = report.dead_letters[0]
        error = (letter.error.splitlines() or [""])[0]
        yield f"dead letters: {len(report.dead_letters):,}, such as item {letter.item} at {letter.stage}: {error}"
    if report.restarts:
        restart = report.restarts[0]
        place = f"{restart.stage} worker {restart.worker}" if restart.kind == "death" else "stall"
        yield f"restarts: {len(report.restarts):,}, such as {place}: {restart.cause}"
    retries = sum(stage.retries for stage in report.stages)
    if retries:
        yield f"retries: {retries:,}"


def render_summary(report: Report) -> RenderableType:
    """Return two lines for a run that failed: status and counts. The caller prints the error itself."""
    run = report.run
    facts = (
        [f"failed before the first item, after {format_ns(run.wall_ns)}"]
        if not run.items_in
        else _format_run_facts(run)
    )
    return Group(_format_status(report), Text(", ".join(facts)))


def _format_status(report: Report) -> Text:
    status = report.run.status
    return Text.assemble((report.name, "bold"), " ", (status, f"bold {_STATUS_STYLES.get(status, 'default')}"))


def _format_headline(report: Report) -> Text:
    line = _format_status(report)
    if report.run.error:
        line.append(f": {(report.run.error.strip().splitlines() or [''])[0]}", style="red")
    return line


def _render_heading(report: Report, run: RunReport) -> Iterator[RenderableType]:
    yield _format_headline(report)
    yield Text(", ".join(_format_run_facts(run)))
    if report.consumer.name != CONSUMER and not report.consumer.is_sink:
        yield Text(", ".join(_format_consumer_facts(report.consumer)))


def _render_run(report: Report) -> Iterator[RenderableType]:
    run, memory = report.run, report.memory
    yield from _render_heading(report, run)
    if memory.arena_peak_bytes:
        limit = f" of {format_bytes(memory.arena_limit_bytes)}" if memory.arena_limit_bytes else ""
        copied = f", {memory.copied_out_items:,} items copied out" if memory.copied_out_items else ""
        yield Text(f"shared memory: peak {format_bytes(memory.arena_peak_bytes)}{limit}{copied}", style="dim")
    if run.timing_overhead.ns_per_hop:
        yield Text(f"timing overhead: {format_ns(run.timing_overhead.ns_per_hop)} per hop", style="dim")


def _format_run_facts(run: RunReport) -> Iterator[str]:
    yield f"{format_count(run.items_in, 'items')} in"
    if run.files_out:
        yield f"{format_count(run.files_out, 'files')} out"
    else:
        yield f"{run.items_out:,} out"
    if run.samples_out not in (run.items_out, run.items_in):
        yield f"{run.samples_out:,} samples"
    if run.items_skipped:
        yield f"{run.items_skipped:,} skipped"
    if run.items_per_s:
        yield f"{format_rate(run.items_per_s)} items/s"
    yield f"{format_ns(run.wall_ns)} in total"
    if run.first_item_ns:
        yield f"first item after {format_ns(run.first_item_ns)}"


def _format_consumer_facts(consumer: ConsumerReport) -> Iterator[str]:
    """Yield how long a training loop waited for input. The wait for the first item is start-up and listed apart."""
    wait_ns = max(consumer.wait_ns - consumer.first_wait_ns, 0)
    share = wait_ns / max(wait_ns + consumer.busy_ns, 1)
    yield f"{consumer.name}: waited {format_ns(wait_ns)} for input ({format_percent(share)} of its time)"
    yield f"{format_ns(consumer.first_wait_ns)} for the first item"
    if consumer.outside_loop_ns:
        yield f"{format_ns(consumer.outside_loop_ns)} outside the loop"


def _build_stage_columns(
    stages: Sequence[StageReport], *, ascii_only: bool, is_brief: bool = False
) -> list[TableColumn]:
    memory_bytes = [s.pss_bytes or s.rss_bytes for s in stages]
    times = [
        TableColumn("run p50", [_format_percentile(s.run_ns, "p50") for s in stages]),
        TableColumn("p99", [_format_percentile(s.run_ns, "p99") for s in stages]),
        TableColumn("CPU", [format_ns(s.cpu_ns) if s.cpu_ns else "" for s in stages]),
    ]
    shares = [name for name, *_ in SHARE_STYLES]
    return [
        TableColumn("stage", [f"+ {s.name}" if s.fused_into else s.name for s in stages]),
        TableColumn("workers", ["fused" if s.fused_into else f"{s.workers:,}" for s in stages]),
        TableColumn("time", [_draw_share_bar(s, ascii_only=ascii_only) for s in stages], is_left_aligned=True),
        *(TableColumn(name, [_format_share(s, name) for s in stages]) for name in (shares[:1] if is_brief else shares)),
        *_build_item_columns(stages, has_outputs=not is_brief),
        *([] if is_brief else times),
        TableColumn("memory", [format_bytes(size) if size else "" for size in memory_bytes]),
    ]


def _build_item_columns(stages: Sequence[StageReport], *, has_outputs: bool) -> list[TableColumn]:
    """Build the columns of source items, their outcome, and the time in the stage per item."""
    outputs = [format_count(s.outputs, s.output_unit) if s.output_unit else "" for s in stages]
    return [
        TableColumn("items", [f"{s.source_items or s.items:,}" for s in stages]),
        *_build_count_columns(_OTHER_COUNTS, stages),
        *([TableColumn("out", outputs)] if has_outputs and any(outputs) else []),
        TableColumn("per item", [_format_item_time(s) for s in stages]),
    ]


def _format_item_time(stage: StageReport) -> str:
    """Format the time in a stage's function per source item; in reports without it, the median time of a call."""
    if stage.source_items:
        return format_ns(stage.source_item_ns)
    return _format_percentile(stage.run_ns, "p50")


def _build_failure_columns(stages: Sequence[StageReport]) -> list[TableColumn]:
    return [TableColumn("stage", [stage.name for stage in stages]), *_build_count_columns(_FAILURES, stages)]


def _build_count_columns(columns: Sequence[CountColumn], stages: Sequence[StageReport]) -> Iterator[TableColumn]:
    for each in columns:
        yield from _build_column_if_any(each.heading, [getattr(stage, each.field) for stage in stages])


def _build_message_columns(hops: Sequence[HopReport]) -> Iterator[TableColumn]:
    """Yield a column for each transport kind; buffers of registered transports are under the transport's name."""
    for heading, field in _MESSAGE_COUNT_COLUMNS:
        carriers = dict.fromkeys(hop.transport.carrier for hop in hops) if field == "shared_memory" else {field: None}
        for carrier in carriers:
            is_carried = [field != "shared_memory" or hop.transport.carrier == carrier for hop in hops]
            counts = [getattr(hop.messages, field) * carried for hop, carried in zip(hops, is_carried, strict=True)]
            yield from _build_column_if_any(heading if carrier == field else carrier, counts)


def _build_hop_columns(hops: Sequence[HopReport], labels: Sequence[str]) -> list[TableColumn]:
    sizes = [hop.bytes.inline + hop.bytes.copied + hop.bytes.zero_copy for hop in hops]
    return [
        TableColumn("hop", labels),
        TableColumn("mode", [hop.transport.mode.replace("_", " ") for hop in hops], is_left_aligned=True),
        *_build_message_columns(hops),
        TableColumn("bytes", [format_bytes(size) if size else "" for size in sizes]),
        TableColumn("cost p50", [_format_percentile(hop.cost_ns, "p50") for hop in hops]),
        TableColumn("p99", [_format_percentile(hop.cost_ns, "p99") for hop in hops]),
        TableColumn(
            "predicted", [format_ns(hop.predicted.median_ns) if hop.predicted.median_ns else "" for hop in hops]
        ),
        TableColumn(
            "measured",
            [format_ns(hop.predicted.measured_median_ns) if hop.predicted.median_ns else "" for hop in hops],
        ),
        TableColumn("saved", [format_ns(hop.saved_ns) if hop.saved_ns else "" for hop in hops]),
    ]


def _build_phase_columns(hops: Sequence[HopReport], labels: Sequence[str]) -> list[TableColumn]:
    """Build a column for each phase that any hop has, in the order in which a message passes through them."""
    columns = [TableColumn("hop", labels)]
    for phase in PHASES:
        cells = [_format_percentile(getattr(hop.phases, phase), "p50") for hop in hops]
        if any(cells):
            columns.append(TableColumn(phase.removesuffix("_ns").replace("_", " "), cells))
    return columns


def _render_object_store(report: Report, *, ascii_only: bool) -> Iterator[RenderableType]:
    """Yield the tables of the object store: one for the hops, one for the nodes."""
    tables = {
        "Object store, sums over the run": make_store_hop_columns(report, "->" if ascii_only else "→"),
        "Nodes of the cluster": make_store_node_columns(report),
    }
    for title, columns in tables.items():
        if columns:
            yield Text()
            yield FoldingTable(title, [TableColumn(heading, cells) for heading, cells in columns])


def _build_what_if_columns(report: Report) -> list[TableColumn]:
    return [
        TableColumn("change", [estimate.change for estimate in report.what_if]),
        TableColumn("items/s", [format_rate(estimate.items_per_s) for estimate in report.what_if]),
        TableColumn("gain", [format_gain(estimate.gain) for estimate in report.what_if]),
        TableColumn("at least", [format_gain(estimate.gain_low) for estimate in report.what_if]),
        TableColumn("override", [_describe_override(estimate) for estimate in report.what_if], is_left_aligned=True),
    ]


def _describe_override(estimate: WhatIf) -> str:
    """Return the overrides of a change, or the reason why the verdict may not offer it."""
    return " ".join(estimate.overrides) if estimate.is_eligible else f"no: {estimate.ineligible_reason}"


def _build_column_if_any(heading: str, counts: Sequence[int]) -> Iterator[TableColumn]:
    """Yield a column of counts if any of them is not zero."""
    if any(counts):
        yield TableColumn(heading, [f"{count:,}" if count else "" for count in counts])


def _format_percentile(percentiles: Percentiles, name: str) -> str:
    """Format one number of a distribution; empty if nothing was measured."""
    return format_ns(getattr(percentiles, name)) if percentiles.max else ""


def _format_share(stage: StageReport, name: str) -> str:
    """Format a share in percent; empty for a fused stage, which has no shares, and for an unknown share."""
    is_unknown = name == "blocked" and not stage.is_blocked_measured
    return "" if stage.fused_into or is_unknown else format_percent(getattr(stage, name))


def _draw_share_bar(stage: StageReport, *, ascii_only: bool) -> Text:
    shares = {} if stage.fused_into else {name: getattr(stage, name) for name, *_ in SHARE_STYLES}
    return draw_share_bar(shares, _SHARE_BAR_CHARS, ascii_only=ascii_only)


def _format_hop(hop: HopReport, *, ascii_only: bool) -> str:
    return f"{hop.source} {'->' if ascii_only else '→'} {hop.target}"


def _render_transport_reasons(hops: Sequence[HopReport], labels: Sequence[str]) -> Iterator[RenderableType]:
    """Yield why each hop uses its transport, below the table, because a reason is a sentence."""
    for hop, label in zip(hops, labels, strict=True):
        if hop.transport.reason:
            yield _render_note(label, hop.transport.reason)
        for change in hop.transport.changes:
            sizes = f"{format_bytes(change.from_bytes)} to {format_bytes(change.to_bytes)}"
            yield _render_note(
                label, f"threshold changed from {sizes} after {change.messages:,} messages: {change.reason}"
            )


def _render_note(label: str, text: str) -> RenderableType:
    return Padding(Text.assemble((label, "bold"), f"  {text}", style="dim"), (0, 0, 0, 2), expand=False)


def _format_worker_changes(report: Report, *, ascii_only: bool) -> Iterator[str]:
    arrow = "->" if ascii_only else "→"
    for change in report.worker_changes:
        text = f"after {format_ns(change.at_ns)}: {format_worker_change(change, arrow)}"
        gains = [
            f"{name} {format_gain(gain)}"
            for name, gain in (("expected", change.expected_gain), ("measured", change.measured_gain))
            if gain
        ]
        yield f"{text}; {', '.join(gains)}" if gains else text


def _render_events(report: Report) -> Iterator[RenderableType]:
    """Yield the restarts, dead letters and slowest items, a few of each."""
    yield from _render_event_list(
        "Restarts",
        [
            f"{r.stage} worker {r.worker}: {r.cause}, item {r.item}" if r.kind == "death" else f"stall: {r.cause}"
            for r in report.restarts
        ],
    )
    dead_letters = [
        f"item {d.item} at {d.stage} after {format_count(d.attempts, 'attempts')}: {d.error}"
        for d in report.dead_letters
    ]
    yield from _render_event_list("Dead letters", dead_letters)
    slow_items = [
        f"item {s.item}{f' ({s.label})' if s.label else ''} at {s.stage}: {format_ns(s.run_ns)}, "
        f"{format_ns(s.queue_ns)} in the queue"
        for s in report.slowest
    ]
    yield from _render_event_list("Slowest items", slow_items)


def _render_event_list(title: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    if not lines:
        return
    shown = f" ({_MAX_EVENT_ROWS} of {len(lines):,})" if len(lines) > _MAX_EVENT_ROWS else ""
    yield Text()
    yield Text(f"{title}{shown}", style="bold")
    for line in lines[:_MAX_EVENT_ROWS]:
        yield Padding(Text((line.splitlines() or [""])[0]), (0, 0, 0, 2), expand=False)


def _render_verdict(report: Report) -> RenderableType:
    verdict = report.verdict
    lines: list[RenderableType] = [WrappedText(verdict.sentence, "bold")]
    if verdict.advice:
        lines.append(WrappedText(verdict.advice))
    if verdict.fix:
        lines.append(Text.assemble("try: ", (verdict.fix, "bold green")))
    return TitledBox(f"Verdict (confidence {verdict.confidence:.0%})", lines)


# ------------------------------------------------------------------ the comparison of two runs


def render_comparison(comparison: Comparison) -> RenderableType:
    """Return a table of the common figures, the notes, and whether the rates differ beyond noise."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("first", "second", "change"):
        table.add_column(name, justify="right")
    _add_row(table, comparison.rate, format_rate)
    for stage in comparison.stages:
        _add_row(table, stage._replace(name=f"{stage.name}, mean run"), format_ns)
    for hop in comparison.hops:
        _add_row(table, hop._replace(name=f"{hop.name}, cost p50"), format_ns)
    notes = [Text(f"Note: {note}") for note in comparison.notes]
    scope = Text("One run each does not show the noise of single stages and hops.")
    return Group(table, *notes, scope, Text(comparison.sentence))


def _add_row(table: Table, difference: Difference, format_value: Callable[[float], str]) -> None:
    change = f"{difference.ratio - 1:+.1%}" if difference.first else ""
    values = (format_value(difference.first), format_value(difference.second), change)
    table.add_row(Text(difference.name), *values)
