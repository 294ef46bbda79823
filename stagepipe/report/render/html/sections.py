"""The sections of the page, each from the part of the report that it shows. Pure.

A section without data is left out, or says in a line that the report has none: an older report has no series.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Final

from stagepipe.core import format_bytes, format_ns, format_percent, format_rate
from stagepipe.report.model import HopReport, Report, StageReport
from stagepipe.report.render.html.charts import Line, draw_areas, draw_lines, draw_sizes
from stagepipe.report.render.html.markup import Content, Markup, element, table
from stagepipe.report.render.html.pipeline import describe_transport, draw_legend, draw_pipeline
from stagepipe.report.series import MemoryPoint, Series
from stagepipe.report.store_tables import make_store_hop_columns, make_store_node_columns

_MAX_EVENTS: Final = 20
"""Dead letters and restarts that are shown; the JSON has all."""

_MIN_ONE_DECIMAL: Final = 0.1
_MAX_TRACE_CHARACTERS: Final = 1000
_MAX_TITLE_CHARACTERS: Final = 400

_STATUS_TEXTS: Final = {"interrupted": "was interrupted"}

_PHASES: Final = {
    "encode_ns": "encode",
    "copy_ns": "copy",
    "send_ns": "send",
    "receive_ns": "receive",
    "decode_ns": "decode",
    "pack_wait_ns": "waiting for a full packet",
    "send_wait_ns": "waiting for room in the pipe",
    "queue_ns": "in the queue",
}


def make_verdict(report: Report) -> Markup:
    """Return what limits the run, and the change to try."""
    verdict, run = report.verdict, report.run
    rate = f"{format_rate(run.items_per_s)} {run.rate_unit}/s"
    counts = (
        f"The run {_STATUS_TEXTS.get(run.status, run.status)}: "
        f"{run.items_in:,} items in, {run.items_out:,} out, {rate}, "
        f"{format_ns(run.wall_ns)} in total, first item after {format_ns(run.first_item_ns)}"
    )
    parts: list[Content] = [element("p", verdict.sentence, class_="sentence")]
    if verdict.fix:
        fixes = " ".join(map(shlex.quote, verdict.fix.split()))
        command = f"stagepipe run {shlex.quote(report.config_path or 'CONFIG')} {fixes}"
        copy = element("button", "Copy", type="button", class_="copy", hidden=True, aria_label="Copy the command")
        parts.append(element("div", element("span", "Try"), element("code", command), copy, class_="command"))
    if verdict.advice:
        parts.append(element("p", verdict.advice))
    parts.extend(element("p", note) for note in report.make_unmatched_notes())
    if run.error:
        parts.append(element("pre", run.error[-_MAX_TRACE_CHARACTERS:]))
    sure = f"Confidence {format_percent(verdict.confidence)}. {counts}."
    return element("section", *parts, element("p", sure, class_="note"), class_="verdict", aria_label="Verdict")


def make_sections(report: Report) -> list[Markup]:
    """Return the sections after the verdict, without those that have nothing to show."""
    sections: tuple[tuple[str, str, Callable[[Report], list[Markup]]], ...] = (
        ("pipeline", "Pipeline", _make_pipeline),
        ("stages", "Stages", _make_stages),
        ("hops", "Hops", _make_hops),
        ("object-store", "Object store of Ray", _make_object_store),
        ("sizes", "Sizes of messages", _make_sizes),
        ("time", "Over time", _make_series),
        ("what-if", "What if (estimates)", _make_what_if),
        ("slowest", "Slowest items", _make_slowest),
        ("dead-letters", "Dead letters", _make_dead_letters),
        ("restarts", "Restarts", _make_restarts),
        ("trust", "How far to trust it", _make_trust),
    )
    made = ((name, title, make(report)) for name, title, make in sections)
    return [
        element("details", element("summary", title), *content, id=name, open=True)
        for name, title, content in made
        if content
    ]


def _make_pipeline(report: Report) -> list[Markup]:
    note = (
        "A box is a process; below it lies the hop to the next one. The width of its bar is its time per item, divided "
        "by its workers: the widest one limits the rate. The parts of the bar are the shares of its workers' time."
    )
    return [element("p", note, class_="note"), draw_legend(), draw_pipeline(report)]


def _make_stages(report: Report) -> list[Markup]:
    names = ("stage", "workers", "items", "busy", "overhead", "blocked", "starved", "starting")
    heading = (*names, "run p50", "p90", "p99", "CPU", "memory")
    rows = [_make_stage_row(stage) for stage in report.stages]
    failures = [
        (stage.name, *(f"{count:,}" for count in (stage.errors, stage.skipped, stage.retries, stage.crashes)))
        for stage in report.stages
        if stage.errors or stage.skipped or stage.retries or stage.crashes
    ]
    tables = [table(heading, rows, caption="Shares of the time of a stage's workers; time in its function per item")]
    if failures:
        failure_heading = ("stage", "errors", "skipped", "retries", "crashes")
        tables.append(table(failure_heading, failures, caption="Failures"))
    return tables


def _make_stage_row(stage: StageReport) -> tuple[str, ...]:
    is_fused = stage.fused_into is not None
    shares = (stage.busy, stage.overhead, stage.blocked, stage.starved, stage.starting)
    run = stage.run_ns
    return (
        f"+ {stage.name}" if is_fused else stage.name,
        "fused" if is_fused else f"{stage.workers:,}",
        f"{stage.items:,}",
        *("" if is_fused else format_percent(share) for share in shares),
        *(format_ns(value) if run.max else "" for value in (run.p50, run.p90, run.p99)),
        format_ns(stage.cpu_ns) if stage.cpu_ns else "",
        format_bytes(stage.pss_bytes) if stage.pss_bytes else "",
    )


def _make_hops(report: Report) -> list[Markup]:
    if not report.hops:
        return []
    heading = ("hop", "travels by", "why", "messages", "each", "cost p50", "p90", "p99", "queue p50", "saved")
    rows = []
    for hop in report.hops:
        facts = (describe_transport(hop), hop.transport.reason, f"{hop.messages.total:,}")
        durations_ns = (hop.cost_ns.p50, hop.cost_ns.p90, hop.cost_ns.p99, hop.phases.queue_ns.p50)
        figures = [
            format_bytes(hop.bytes.total / max(hop.messages.total, 1)),
            *map(format_ns, durations_ns),
            _format_signed_ns(hop.saved_ns),
        ]
        rows.append((_name(hop), *facts, *([""] * len(figures) if hop.transport.mode == "local" else figures)))
    changes = [
        element(
            "p",
            f"{_name(hop)}: after {change.messages:,} messages the threshold went from "
            f"{format_bytes(change.from_bytes)} to {format_bytes(change.to_bytes)}: {change.reason}",
            class_="note",
        )
        for hop in report.hops
        for change in hop.transport.changes
    ]
    phases = [_make_phases(hop) for hop in report.hops if hop.transport.mode != "local"]
    caption = "Cost of a message, sending and receiving together; the queue is waiting, and no cost"
    return [table(heading, rows, caption=caption, text_columns=3), *changes, *phases]


def _make_phases(hop: HopReport) -> Markup:
    rows = []
    for field, name in _PHASES.items():
        values = getattr(hop.phases, field)
        if values.max or values.p99:
            kind = "waiting" if "wait" in field or field == "queue_ns" else "cost"
            rows.append((name, kind, *(format_ns(value) for value in (values.p50, values.p90, values.p99))))
    if not rows:
        return Markup()
    caption = f"Phases of {_name(hop)}"
    content = table(("phase", "kind", "p50", "p90", "p99"), rows, caption=caption, text_columns=2)
    return element("details", element("summary", caption), content)


def _make_object_store(report: Report) -> list[Markup]:
    captions = {
        "Hops through the object store, sums over the run": make_store_hop_columns(report),
        "Object stores of the nodes during the run, of all programs that use them": make_store_node_columns(report),
    }
    return [
        table(
            [heading for heading, _ in columns],
            list(zip(*(cells for _, cells in columns), strict=True)),
            caption=caption,
        )
        for caption, columns in captions.items()
        if columns
    ]


def _make_sizes(report: Report) -> list[Markup]:
    charts, tables, has_curves = [], [], False
    for hop in report.hops:
        if not hop.sizes:
            continue
        count = sum(size.messages for size in hop.sizes)
        bounds = f"{format_bytes(hop.sizes[0].min_bytes)} to {format_bytes(hop.sizes[-1].max_bytes)}"
        label = f"{_name(hop)}: {count:,} messages of {bounds}"
        chart, drew_curves = draw_sizes(hop.sizes, hop.transport.threshold_bytes, report.calibration, label=label)
        has_curves = has_curves or drew_curves
        threshold = f"threshold {format_bytes(hop.transport.threshold_bytes)}" if hop.transport.threshold_bytes else ""
        charts.append(_figure(_name(hop), chart, threshold))
        tables.append(_make_size_table(hop))
    if not charts:
        return []
    labels = {"pipe": 1, "shared memory, copied": 2} if has_curves else {}
    note = "Bars: messages by size. Upright dashes: the threshold from which a buffer goes to shared memory."
    if has_curves:
        note += (
            " Lines: what a message of that size costs on this machine, by its calibration. "
            "All but the bars' height is on a log scale."
        )
    charts_box = element("div", *charts, class_="charts")
    return [element("p", note, class_="note"), _make_line_legend(labels), charts_box, *tables]


def _make_size_table(hop: HopReport) -> Markup:
    """Return the heights of the bars as numbers: the chart has no tooltips, which need a mouse."""
    rows = [(f"{format_bytes(s.min_bytes)} to {format_bytes(s.max_bytes)}", f"{s.messages:,}") for s in hop.sizes]
    caption = f"Messages of {_name(hop)} by size"
    return element("details", element("summary", caption), table(("size", "messages"), rows, caption=caption))


def _make_series(report: Report) -> list[Markup]:
    series = report.series
    if len(series.times_ns) <= 1:
        return []
    times = [time_ns / 1e9 for time_ns in series.times_ns]
    charts = []
    for stage in series.stages:
        highest = f"{format_rate(max(stage.items_per_s, default=0.0))} items/s"
        lines = [Line("items/s", list(zip(times, stage.items_per_s, strict=False)))]
        label = f"{stage.name}: items per second over time, at most {highest}"
        charts.append(
            _figure(f"{stage.name}: rate", draw_lines(lines, label=label, maximum_text=highest, end_s=times[-1]))
        )
    shares = []
    for stage in series.stages:
        areas = {"busy": stage.busy, "blocked": stage.blocked, "starved": stage.starved}
        label = f"{stage.name}: shares of its time over time: busy, blocked, starved"
        shares.append(_figure(f"{stage.name}: shares", draw_areas(times, areas, label=label)))
    queues = []
    for hop in series.hops:
        most = f"{_format_mean(max(hop.queued, default=0.0))} items"
        lines = [Line("queued", list(zip(times, hop.queued, strict=False)))]
        name = f"{hop.source} → {hop.target}"
        label = f"{name}: items on their way over time, at most {most}"
        queues.append(_figure(f"{name}: queue", draw_lines(lines, label=label, maximum_text=most, end_s=times[-1])))
    parts = [element("h3", "Rates"), element("div", *charts, class_="charts"), element("h3", "Shares")]
    rest = element("p", "What is left of 100 % is overhead: sending, receiving, waiting for a CPU.", class_="note")
    parts += [draw_legend(("busy", "blocked", "starved")), rest, element("div", *shares, class_="charts")]
    if queues:
        parts += [element("h3", "Queues"), element("div", *queues, class_="charts")]
    return [*parts, *_make_memory(series, times)]


def _make_memory(series: Series, times: list[float]) -> list[Markup]:
    def convert(points: tuple[MemoryPoint, ...]) -> list[tuple[float, float]]:
        return [(point.time_ns / 1e9, point.bytes) for point in points]

    shared = list(zip(times, series.shared_memory_bytes, strict=False))
    lines = [Line("shared memory in use", shared, 2), Line("RSS of the workers", convert(series.rss_bytes), 0)]
    lines = [
        line for line in (*lines, Line("PSS of the workers", convert(series.pss_bytes), 1)) if len(line.points) > 1
    ]
    if not lines:
        return []
    most = format_bytes(max(value for line in lines for _, value in line.points))
    end_s = max(times[-1], *(line.points[-1][0] for line in lines))
    label = f"Memory over time, at most {most}: {', '.join(line.label for line in lines)}"
    chart = _figure("All workers together", draw_lines(lines, label=label, maximum_text=most, end_s=end_s))
    legend = _make_line_legend({line.label: line.style for line in lines})
    return [element("h3", "Memory"), legend, element("div", chart, class_="charts")]


def _make_what_if(report: Report) -> list[Markup]:
    if not report.what_if:
        return []
    rows = [
        (
            estimate.change,
            element("code", " ".join(estimate.overrides)) if estimate.overrides else "",
            f"about {format_rate(estimate.items_per_s)}",
            estimate.format_gain(),
        )
        for estimate in report.what_if
    ]
    now = f"{format_rate(report.run.items_per_s)} {report.run.rate_unit}/s"
    caption = f"Each change alone, from the costs that this run measured: now it has {now}"
    heading = ("change", "override", f"{report.run.rate_unit}/s, estimated", "gain")
    return [table(heading, rows, caption=caption, text_columns=2)]


def _make_slowest(report: Report) -> list[Markup]:
    if not report.slowest:
        return []
    rows = [(slow.item, slow.stage, format_ns(slow.run_ns), format_ns(slow.queue_ns)) for slow in report.slowest]
    heading = ("item", "stage", "in its function", "in the queue before it")
    return [table(heading, rows, caption="Without the first item of each worker", text_columns=2)]


def _make_dead_letters(report: Report) -> list[Markup]:
    letters = report.dead_letters
    parts = []
    for letter in letters[:_MAX_EVENTS]:
        title = f"item {letter.item} in {letter.stage}: {letter.error}"[:_MAX_TITLE_CHARACTERS]
        trace = letter.trace[-_MAX_TRACE_CHARACTERS:] or letter.error[-_MAX_TRACE_CHARACTERS:]
        attempts = f"{letter.attempts:,} attempt{'s' if letter.attempts != 1 else ''}, epoch {letter.epoch:,}"
        parts.append(element("details", element("summary", title), element("p", attempts), element("pre", trace)))
    return [*parts, *_make_rest_note(len(letters))]


def _make_restarts(report: Report) -> list[Markup]:
    if not report.restarts:
        return []
    rows = [
        (
            restart.kind,
            f"{restart.stage} {restart.worker}" if restart.stage else "",
            restart.item,
            restart.cause[:_MAX_TITLE_CHARACTERS],
            format_ns(restart.lost_ns),
        )
        for restart in report.restarts[:_MAX_EVENTS]
    ]
    heading = ("kind", "worker", "item", "cause", "time lost")
    made = table(heading, rows, caption="Restarts from the last delivered item", text_columns=4)
    return [made, *_make_rest_note(len(report.restarts))]


def _make_trust(report: Report) -> list[Markup]:
    overhead, host = report.run.timing_overhead, report.host
    versions = ", ".join(f"{name} {version}" for name, version in sorted(host.versions.items()))
    facts: dict[str, str] = {
        "timing overhead": f"{format_ns(overhead.ns_per_hop)} per hop ({overhead.how or 'not determined'})",
        "messages measured": ", ".join(f"{_name(hop)} {hop.messages.total:,}" for hop in report.hops),
        "accuracy": "percentiles within 2 %; maxima and means exact",
        "shared memory": f"{format_bytes(report.memory.arena_peak_bytes)} at its peak, limit "
        f"{format_bytes(report.memory.arena_limit_bytes)}; {report.memory.copied_out_items:,} items copied out",
        "host": f"{host.cpus:,} CPUs, {format_bytes(host.memory_bytes)}, Linux {host.kernel}, Python {host.python}",
        "versions": versions,
        "calibration of": str(report.calibration.get("measured_at", "")),
        "config": report.config_path,
        "config, SHA-256": report.config_sha256,
        "schema": report.schema,
    }
    rows = [(name, text) for name, text in facts.items() if text]
    parts = [table(("what", "value"), rows, caption="Where the figures come from", text_columns=2)]
    predicted = [
        (
            _name(hop),
            format_ns(hop.predicted.median_ns),
            format_ns(hop.predicted.measured_median_ns),
            f"{hop.predicted.measured_ratio:.2f} times",
        )
        for hop in report.hops
        if hop.predicted.median_ns
    ]
    if predicted:
        heading = ("hop", "predicted median", "measured median", "measured / predicted")
        caption = "The calibration predicts an idle machine; a busy one takes longer"
        parts.append(table(heading, predicted, caption=caption))
    if not report.series.times_ns:
        parts.append(
            element(
                "p",
                "This report has no course over time: it comes from an older version or a very short run.",
                class_="note",
            )
        )
    return parts


def _make_rest_note(count: int) -> list[Markup]:
    rest = count - _MAX_EVENTS
    return [element("p", f"and {rest:,} more in the report's JSON", class_="note")] if rest > 0 else []


def _make_line_legend(styles: Mapping[str, int]) -> Markup:
    def draw_key(style: int) -> Markup:
        path = element("path", d="M0 5H26", class_=f"line line-{style}")
        return element("svg", path, class_="key", viewbox="0 0 26 10", aria_hidden="true")

    if not styles:
        return Markup()
    return element("ul", *(element("li", draw_key(style), name) for name, style in styles.items()), class_="legend")


def _figure(title: str, chart: Markup, caption: str = "") -> Markup:
    below = [element("figcaption", caption)] if caption else []
    return element("figure", element("h3", title), chart, *below)


def _format_mean(number: float) -> str:
    """Format a mean number of items: one decimal, or one digit of a small number.

    >>> _format_mean(12.34), _format_mean(0.0123), _format_mean(0.0)
    ('12.3', '0.01', '0')
    """
    return f"{number:,.1f}" if number >= _MIN_ONE_DECIMAL else f"{number:.1g}"


def _name(hop: HopReport) -> str:
    return f"{hop.source} → {hop.target}"


def _format_signed_ns(duration_ns: int) -> str:
    if not duration_ns:
        return ""
    return f"-{format_ns(-duration_ns)}" if duration_ns < 0 else format_ns(duration_ns)
