"""Draws a report as one HTML file, or as a fragment for a notebook, without any external resource.

Text is escaped only in `element` and `join`. Charts are SVG that stretches to the width of its surroundings and
contains no text: scale, unit and legend are HTML around the chart, so that no text is stretched or overlaps.

Each box of the pipeline has a bar: the time in its functions for one item of the source, divided by its workers. If
nothing else holds the items up, the longest bar sets the pace of the pipeline. If a row does not know this time (an
older report, another scheduler), it is computed from the busy share.

summary.css  figures, verdict and pipeline, light and dark, wide and narrow: the style of the fragment
page.css     the rest of the page, and paper
script.js    the toggle of the theme, the copy button, all sections open while printing
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final, NamedTuple

from stagepipe.core import format_bytes, format_ns, format_percent, format_rate
from stagepipe.report.model import HopReport, Report, RunReport, StageReport
from stagepipe.report.record import COUNT_COLUMNS, Series, SizeCount, StageSeries, WhatIf, format_gain
from stagepipe.report.render.tables import make_store_hop_columns, make_store_node_columns
from stagepipe.report.utilization import CONSUMER, format_count, format_worker_numbers, list_worker_numbers

# ------------------------------------------------------------------ elements and tables


class Markup(str):
    """Complete HTML that is not escaped again."""

    __slots__ = ()


Content = str | Markup
"""A plain `str` is text and gets escaped; a `Markup` does not."""

_VOID_ELEMENTS: Final = frozenset({"meta", "path", "wbr"})
_MAX_NARROW_COLUMNS: Final = 3
"""A table with more columns is wider than the screen of a phone: it scrolls there, with a hint."""


def element(tag: str, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """Return an element without attributes that are None or False; `_` in their names becomes `-` (`class_`: `class`).

    >>> element("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    pairs = "".join(_format_attribute(key, value) for key, value in attributes.items())
    if tag in _VOID_ELEMENTS:
        return Markup(f"<{tag}{pairs}/>")
    return Markup(f"<{tag}{pairs}>{join(content)}</{tag}>")


def join(parts: Iterable[Content]) -> Markup:
    """Join the parts, and escape those that are plain text."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def break_name(name: str) -> Markup:
    """Return a name that may break into lines after each `_`, `-`, `.` and `/`."""
    return Markup("<wbr/>".join(map(escape, re.findall(r"[^_./-]*[_./-]|[^_./-]+", name))))


def fold(title: str, *content: Content, name: str | None = None, is_open: bool = False) -> Markup:
    """Return content that opens and closes under its title."""
    return element("details", element("summary", title), *content, id=name, open=is_open)


def table(
    heading: Sequence[Content], rows: Iterable[Sequence[Content]], *, caption: str, text: Container[int] = (0,)
) -> Markup:
    """Return a table that scrolls on its own if it is too wide. `text`: the columns that hold no figures."""
    head = join(
        element("th", name, scope="col", class_=None if index in text else "n") for index, name in enumerate(heading)
    )
    body = join(
        element(
            "tr",
            *(
                element("th", cell, scope="row")
                if index == 0
                else element("td", cell, class_=None if index in text else "n")
                for index, cell in enumerate(row)
            ),
        )
        for row in rows
    )
    content = join((element("thead", element("tr", head)), element("tbody", body)))
    is_wide = len(heading) > _MAX_NARROW_COLUMNS
    scroll = element("div", element("table", content), class_="scroll", tabindex="0", role="region", aria_label=caption)
    return element("div", element("p", caption, class_="caption"), scroll, class_="wide" if is_wide else None)


def _format_attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    name = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio"}.get(name, name)
    if value is True:
        return f' {name}=""'
    return f' {name}="{escape(f"{value:g}" if isinstance(value, float) else str(value))}"'


# ------------------------------------------------------------------ shares and lines over time

STATES: Final = ("busy", "overhead", "blocked", "starved", "starting")
"""The states of a process's workers, in the order in which they are drawn."""

_HEIGHT: Final = 40
_MAX_POINTS: Final = 100
"""A strip has no room for more points on a small screen."""


def thin(values: Sequence[float]) -> list[float]:
    """Return at most 100 values, each the mean of some neighbours.

    >>> thin([1.0, 3.0])
    [1.0, 3.0]
    """
    count = min(len(values), _MAX_POINTS)
    bounds = [round(number * len(values) / count) for number in range(count + 1)] if count else []
    return [sum(values[low:high]) / (high - low) for low, high in pairwise(bounds)]


def draw_shares(shares: Mapping[str, Sequence[float]], label: str) -> Markup:
    """Return shares of 1 over time, stacked; with one value of each, the result is a level bar."""
    lower = [0.0] * len(shares["busy"])
    areas = []
    for name in STATES:
        upper = [low + max(value, 0.0) for low, value in zip(lower, shares[name], strict=True)]
        if upper != lower:
            areas.append((name, upper))
        lower = upper
    paths = [
        element("path", d=f"{_make_path(upper, 1.0)}V{_HEIGHT}H0Z", class_=f"fill-{name}")
        for name, upper in reversed(areas)  # the lower ones cover the upper ones
    ]
    return _draw_frame(len(lower), paths, label)


def draw_lines(lines: Mapping[int, Sequence[float]], highest: float, label: str) -> Markup:
    """Return lines over time by the number of their style, on a scale from 0 to `highest`. Larger values are cut."""
    paths = [
        element("path", d=_make_path(values, highest), class_=f"line line-{style}") for style, values in lines.items()
    ]
    return _draw_frame(max(map(len, lines.values())), paths, label)


def draw_key(name: str) -> Markup:
    """Return the piece of a legend that shows the colour of a state, or the line of a style."""
    if name in STATES:
        return element("i", class_=f"key fill-{name}")
    path = element("path", d="M0 5H26", class_=f"line line-{name}")
    return element("svg", path, class_="key", viewbox="0 0 26 10", aria_hidden="true")


def _make_path(values: Sequence[float], highest: float) -> str:
    """Return a line whose points are one unit apart. Relative steps take half as many characters as coordinates."""
    heights = [round(_HEIGHT * (1 - min(max(value, 0.0) / highest, 1.0))) for value in values] if highest > 0 else []
    if len(heights) <= 1:
        return f"M0 {heights[0] if heights else _HEIGHT}H1"
    steps = "".join(f" 1 {after - before}" for before, after in pairwise(heights))
    return f"M0 {heights[0]}l{steps[1:]}"


def _draw_frame(points: int, paths: Sequence[Markup], label: str) -> Markup:
    return element(
        "svg",
        *paths,
        viewbox=f"0 0 {max(points - 1, 1)} {_HEIGHT}",
        preserveaspectratio="none",
        class_="strip",
        role="img",
        aria_label=label,
    )


# ------------------------------------------------------------------ the pipeline as a row of boxes

_MIN_SHOWN_BAR: Final = 0.01
_MAX_ROOMY_BOXES: Final = 10
"""With more boxes, each is narrow at 1280 px: its text is smaller and shorter."""

_ALL_HOPS: Final = "hops"
"""The verdict's name for the limit if all stages are too small for processes."""

_TAGS: Final = {"restarts": "restarted", "startup": "slow to start"}
"""The tag on the box of the limit, by the kind of the verdict; else it is "bottleneck"."""


class Box(NamedTuple):
    """A process or the consumer: the time of each of its stages for one source item, divided by its workers, in ns."""

    name: str
    note: str
    parts: Sequence[tuple[str, float]]

    @property
    def ns(self) -> float:
        """The total time of its stages."""
        return sum(ns for _, ns in self.parts)


def measure_boxes(report: Report) -> list[Box]:
    """Return the boxes in the order of the pipeline.

    A sink replaces the consumer, unless the consumer limits the run.
    """
    boxes, numbers = [], list_worker_numbers(report.worker_changes)
    for stage in report.stages:
        if stage.fused_into is None:
            members = [stage, *(other for other in report.stages if other.fused_into == stage.name)]
            note = format_count(stage.workers, "workers")
            if stage.name in numbers:
                note = f"{format_worker_numbers(numbers[stage.name])} workers"
            boxes.append(Box(stage.name, note, _measure_parts(members, report.run)))
    has_sink = any(stage.kind == "sink" for stage in report.stages)
    if not has_sink or report.verdict.kind == "consumer":
        consumer = report.consumer
        note = "takes the output" if consumer.name == CONSUMER else "in the calling process"
        boxes.append(Box(consumer.name, note, [(consumer.name, consumer.busy_ns / max(report.run.items_in, 1))]))
    return boxes


def draw_pipeline(report: Report) -> Markup:
    """Return the boxes, across a wide screen and down a narrow one, and an explanation of their bars."""
    verdict, boxes = report.verdict, measure_boxes(report)
    longest = max(boxes, key=lambda box: box.ns)
    limit = boxes[-1] if verdict.kind == "consumer" else None
    limit = limit or next((box for box in boxes if verdict.limited_by in dict(box.parts)), None)
    drawn = []
    for index, box in enumerate(boxes):
        tag = _TAGS.get(verdict.kind, "bottleneck") if box is limit else ""
        drawn.append(_draw_box(box, longest.ns or 1.0, tag, verdict.limited_by))
        if index < len(boxes) - 1:
            drawn.append(_draw_arrow(report, box))
    note = "Bar: time in the functions of a stage for one item of the source, divided by its workers. "
    if limit is longest and verdict.kind not in _TAGS:
        note += "The longest bar limits the rate."
    else:
        note += "The longest bar has the most work; the verdict names the limit of this run."
    flow = "flow tight" if len(boxes) > _MAX_ROOMY_BOXES else "flow"
    return element("div", element("ol", *drawn, class_=flow), element("p", note, class_="note"))


def _measure_parts(members: Sequence[StageReport], run: RunReport) -> list[tuple[str, float]]:
    first, source_items = members[0], max(members[0].source_items or run.items_in, 1)
    if any(stage.source_item_ns for stage in members):
        return [(stage.name, stage.source_item_ns / first.worker_divisor) for stage in members]
    busy_ns = first.busy * run.wall_ns / source_items
    works = [stage.run_ns.mean * stage.items for stage in members]
    total = sum(works)
    return [
        (stage.name, busy_ns * (work / total if total else 1 / len(members)))
        for stage, work in zip(members, works, strict=True)
    ]


def _draw_box(box: Box, longest_ns: float, tag: str, limited_by: str) -> Markup:
    """Draw a box. A fused stage that limits the run is marked in the list of its process."""
    share = max(box.ns / longest_ns, _MIN_SHOWN_BAR)
    pieces = [element("i", style=f"--p:{ns / box.ns:.3f}") for _, ns in box.parts if ns > 0]
    bar = element("div", *pieces, class_="fill", style=f"--s:{share:.3f}")
    text = f"{box.name}: {format_ns(box.ns)} per item of the source"
    content: list[Content] = [
        element("div", bar, class_="well", role="img", aria_label=text),
        element("b", break_name(box.name)),
        element("span", format_ns(box.ns), class_="time"),
        element("span", box.note, class_="dim"),
    ]
    if len(box.parts) > 1:
        names = [f"{'+ ' if index else ''}{name} " for index, (name, _) in enumerate(box.parts)]
        lines = (
            element("li", element("b", shown) if name == limited_by else shown, format_ns(ns))
            for shown, (name, ns) in zip(names, box.parts, strict=True)
        )
        content.append(element("ul", *lines, aria_label="stages in this process"))
    if tag:
        content.append(element("span", tag, class_="tag"))
    return element("li", *content, class_="box limit" if tag else "box")


def _draw_arrow(report: Report, box: Box) -> Markup:
    """Draw the hop to the next box, with its cost if this hop or all hops limit the run."""
    names = dict(box.parts)
    hop = next((hop for hop in report.hops if hop.source in names and hop.target not in names), None)
    limit = report.verdict.limited_by.partition(" -> ")[0]
    if hop is None or report.verdict.kind != "hop" or limit not in {hop.source, _ALL_HOPS}:
        return element("li", class_="arrow", aria_hidden="true")
    cost = element("span", f"{format_ns(hop.cost_ns.mean)} per message")
    return element("li", element("span", "bottleneck", class_="tag"), cost, class_="arrow limit")


# ------------------------------------------------------------------ the sections

_MAX_EVENTS: Final = 20
"""Maximum number of dead letters, restarts and changes of workers on the page; the JSON has all."""

_MAX_TRACE_CHARACTERS: Final = 1000
_MAX_TITLE_CHARACTERS: Final = 400
_LONG_FIGURE: Final = 10
"""A figure with more characters is drawn smaller."""

_USUAL_SHARE: Final = 0.98
"""Quantile of the values at which the scale of rates and queues ends, so that bursts are cut."""

_MAX_OVERHEAD: Final = 0.5
"""A larger share of an interval is not overhead but time that was not counted yet."""

_LAST_TARGET: Final = "sink"
"""The target name of the last hop."""

_BUSY_KINDS: Final = frozenset({"stage", "source", "sink", "consumer"})

_STATE_WORDS: Final = (
    "Busy: in the function of the stage. Overhead: sending, receiving, waiting for a CPU. "
    "Blocked: a later stage is slower. Starved: an earlier stage is slower."
)

_PHASES: Final = ("encode", "copy", "pack_wait", "send", "send_wait", "receive", "decode")

_TRANSPORTS: Final = {
    "local": "call",
    "pipe": "pipe",
    "shared_memory": "shared memory",
    "mixed": "both",
    "object_store": "store",
}

_HOP_WORDS: Final = {
    "hop": "the way from one process to the next",
    "message": "the content of one write: usually one item",
    "call": "fused stages share a process: no message, a function call",
    "pipe": "all bytes go through a pipe: best for small items",
    "shared memory": "large arrays are written to memory that both processes see, and read there without a copy",
    "cost": "the time to send and to receive a message: encode, copy, send, receive, decode. p50 is the median; "
    "one message in a hundred takes p99 or longer",
    "queue": "the time until a message is read: it is longest before the bottleneck, and is no cost",
    "saved": "in the whole run, compared with the other way, by this machine's calibration",
    "encode, decode": "pickling and unpickling, without large arrays",
    "copy": "large arrays into shared memory",
    "pack wait, send wait": "waiting for the small items that share a packet, and for room in the pipe; no cost",
}


def make_summary(report: Report) -> Markup:
    """Return the figures, the verdict with its change to try, and the picture of the pipeline."""
    run, verdict = report.run, report.verdict
    parts: list[Content] = []
    if run.error:
        lines = run.error.strip().splitlines() or [""]
        parts.append(element("p", element("b", "The run failed: "), lines[0][:_MAX_TITLE_CHARACTERS]))
        if len(lines) > 1:
            parts.append(fold("The full error", element("pre", run.error[-_MAX_TRACE_CHARACTERS:])))
        parts = [element("div", *parts, class_="failure", role="alert")]
    parts.append(element("dl", *_make_figures(report), class_="figures"))
    estimate = next((row for row in report.what_if if verdict.fix and " ".join(row.overrides) == verdict.fix), None)
    advice = verdict.advice
    if estimate is not None:  # the command shows its gain
        advice = advice.replace(
            f": about {format_gain(estimate.gain)} items/s, at least {format_gain(estimate.gain_low)}", ""
        )
    says: list[Content] = [element("p", verdict.sentence, class_="sentence"), *_make_command(report, estimate)]
    says.extend(element("p", text) for text in (advice, *report.make_unmatched_notes()) if text)
    says.append(element("p", f"Confidence {format_percent(verdict.confidence)}", class_="note"))
    parts.append(element("section", *says, class_="verdict", aria_label="Verdict"))
    if report.stages:
        parts.append(element("section", draw_pipeline(report), aria_label="Pipeline"))
    return element("div", *parts, class_="summary")


def describe_run(run: RunReport, stages: Sequence[StageReport]) -> str:
    """Return how the run ended, its input and its output, in the words of the config.

    >>> describe_run(report.run, report.stages)  # doctest: +SKIP
    'finished: 300 items in, 1 file out'
    """
    last = stages[-1] if stages else None
    if run.files_out:
        out = format_count(run.files_out, "files")
    elif last is not None and last.outputs:
        out = format_count(last.outputs, last.output_unit)
    else:
        out = format_count(run.items_out, "items")
    if run.samples_out not in {run.items_out, run.items_in}:
        out += f" with {format_count(run.samples_out, 'samples')}"
    skipped = f", {run.items_skipped:,} skipped" if run.items_skipped else ""
    return f"{run.status}: {format_count(run.items_in, 'items')} in, {out} out{skipped}"


def make_sections(report: Report) -> list[Markup]:
    """Return the sections below the picture, without empty ones; details of hops come folded."""
    sections: tuple[tuple[str, str, bool, Callable[[Report], list[Markup]]], ...] = (
        ("what-if", "What if (estimates)", True, _make_what_if),
        ("restarts", "Restarts", True, _make_restarts),
        ("dead-letters", "Dead letters: items that failed and were skipped", True, _make_dead_letters),
        ("time", "Where the workers' time went", True, _make_shares),
        ("rates", "Rates, queues and memory over time", True, _make_rates),
        ("workers", "Changes of workers", True, _make_worker_changes),
        ("stages", "Stages", True, _make_stages),
        ("slowest", "Slowest items", True, _make_slowest),
        ("hops", "Hops between the processes", False, _make_hops),
        ("object-store", "Object store", False, _make_object_store),
        ("trust", "How far to trust it", False, _make_trust),
    )
    made = ((name, title, is_open, make(report)) for name, title, is_open, make in sections)
    return [fold(title, *content, name=name, is_open=is_open) for name, title, is_open, content in made if content]


def _make_figures(report: Report) -> Iterator[Markup]:
    """Yield the large figures. A run that delivered nothing has no rate."""
    run, verdict, memory = report.run, report.verdict, report.memory
    rate, unit = (run.samples_per_s, "samples/s") if run.samples_per_s else (run.items_per_s, f"{run.rate_unit}/s")
    if rate:
        yield _make_figure("Rate", format_rate(rate), unit, "in the steady state, without start and end")
    first = f"the first item after {format_ns(run.first_item_ns)}" if run.first_item_ns else ""
    yield _make_figure("Time", *format_ns(run.wall_ns).split(" "), first)
    share = format_percent(verdict.share)
    note = f"busy {share} of the time" if verdict.kind in _BUSY_KINDS else f"{share} of the run's time"
    name = report.consumer.name if verdict.kind == "consumer" else verdict.limited_by.replace(" -> ", " → ")
    yield _make_figure("Bottleneck", name or "none found", "", note if verdict.share else verdict.kind if name else "")
    peak = max((point.bytes for point in report.series.pss_bytes), default=0)
    peak = max(peak, sum(stage.pss_bytes or stage.rss_bytes for stage in report.stages))
    shared = f"shared memory at most {format_bytes(memory.arena_peak_bytes)}" if memory.arena_peak_bytes else ""
    if peak:
        host = f" of {format_bytes(report.host.memory_bytes)}" if report.host.memory_bytes else ""
        yield _make_figure("Memory", *format_bytes(peak).split(" "), f"of all workers{host}", shared)


def _make_figure(name: str, value: str, unit: str, *notes: str) -> Markup:
    size = "long" if len(value) > _LONG_FIGURE else None
    shown = element("b", value if unit else break_name(value), class_=size)
    lines = (element("dd", note, class_="note") for note in notes if note)
    return element("div", element("dt", name), element("dd", shown, " ", unit, class_="figure"), *lines)


def _make_command(report: Report, estimate: WhatIf | None) -> list[Markup]:
    """Return the command with the fix, and the gain by the estimate with the same overrides."""
    if not report.verdict.fix:
        return []
    overrides = " ".join(map(shlex.quote, report.verdict.fix.split()))
    command = f"stagepipe run {shlex.quote(report.config_path or 'CONFIG')} {overrides}"
    copy = element("button", "Copy", type="button", class_="copy", hidden=True, aria_label="Copy the command")
    gain = []
    if estimate is not None:
        low = f", at least {format_gain(estimate.gain_low)}" if estimate.gain_low > 0 else ""
        gain = [element("span", element("b", format_gain(estimate.gain)), f" items/s, estimated{low}")]
    return [element("div", element("b", "Try"), element("code", command), copy, *gain, class_="command")]


def _make_what_if(report: Report) -> list[Markup]:
    offered = [row for row in report.what_if if not row.ineligible_reason]
    refused = [row for row in report.what_if if row.ineligible_reason]
    unit = "items/s" if report.run.samples_per_s else f"{report.run.rate_unit}/s"

    now = f"now {format_rate(report.run.items_per_s)} {unit}"
    caption = f"Each change separately, estimated from the costs of this run: {now}"
    parts = []
    if offered:
        rows = [_make_estimate(row, format_gain(row.gain_low) if row.gain_low else "") for row in offered]
        heading = ("change", "gain", "at least", unit, "override")
        parts.append(table(heading, rows, caption=caption, text=(0, 4)))
    if refused:
        title = f"{format_count(len(refused), 'changes')} that the verdict does not offer, and why"
        rows = [_make_estimate(row, row.ineligible_reason) for row in refused]
        heading = ("change", "gain", "why not", unit, "override")
        parts.append(fold(title, table(heading, rows, caption=caption, text=(0, 2, 4))))
    return parts


def _make_estimate(row: WhatIf, *middle: str) -> tuple[Content, ...]:
    override = element("code", break_name(" ".join(row.overrides))) if row.overrides else ""
    return (break_name(row.change), format_gain(row.gain), *middle, f"about {format_rate(row.items_per_s)}", override)


def _make_restarts(report: Report) -> list[Markup]:
    if not report.restarts:
        return []
    kinds = {"death": "died", "stall": "nothing moved"}
    rows = [
        (
            f"{restart.stage} {restart.worker}" if restart.stage else "all",
            f"{kinds[restart.kind]}: {restart.cause}"[:_MAX_TITLE_CHARACTERS],
            restart.item,
            format_ns(restart.lost_ns),
        )
        for restart in report.restarts[:_MAX_EVENTS]
    ]
    heading = ("worker", "cause", "item", "time lost")
    made = table(heading, rows, caption="Restarts from the last delivered item", text=range(3))
    return [made, *_make_rest_note(len(report.restarts))]


def _make_worker_changes(report: Report) -> list[Markup]:
    changes = report.worker_changes
    rows = [
        (
            format_ns(change.at_ns),
            break_name(change.stage),
            "none" if change.failure else f"{change.workers - change.delta} → {change.workers}",
            (change.failure or change.reason)[:_MAX_TITLE_CHARACTERS],
            format_ns(change.took_ns) if change.took_ns else "",
            *(format_gain(gain) if gain else "" for gain in (change.expected_gain, change.measured_gain)),
        )
        for change in changes[:_MAX_EVENTS]
    ]
    heading = ("after", "stage", "workers", "why", "took", "gain expected", "measured")
    caption = "Workers that stages gained or lost. Measured: the gain of the stage's rate a few seconds later"
    made = [table(heading, rows, caption=caption, text=(0, 1, 2, 3))] if rows else []
    return [*made, *_make_rest_note(len(changes))]


def _make_dead_letters(report: Report) -> list[Markup]:
    letters = report.dead_letters
    parts = []
    for letter in letters[:_MAX_EVENTS]:
        title = f"item {letter.item} in {letter.stage}: {letter.error}"[:_MAX_TITLE_CHARACTERS]
        trace = (letter.trace or letter.error)[-_MAX_TRACE_CHARACTERS:]
        attempts = f"{format_count(letter.attempts, 'attempts')}, epoch {letter.epoch:,}"
        parts.append(fold(title, element("p", attempts), element("pre", trace)))
    return [*parts, *_make_rest_note(len(letters))]


def _make_shares(report: Report) -> list[Markup]:
    """Return the shares of each process: over time if the run has a series, and as numbers."""
    processes = [stage for stage in report.stages if stage.fused_into is None]
    if not processes:
        return []
    course = {stage.name: stage for stage in report.series.stages}
    rows = []
    for stage in processes:
        shares = {name: [float(getattr(stage, name))] for name in STATES}
        if stage.name in course and len(report.series.times_ns) > 1:
            over_time = course[stage.name]
            shares = {name: thin(getattr(over_time, name)) for name in ("busy", "blocked", "starved")}
            shares = _split_rest(shares, stage.starting)
        label = ", ".join(f"{name} {format_percent(getattr(stage, name))}" for name in STATES)
        numbers = [
            "" if name == "blocked" and not stage.is_blocked_measured else format_percent(getattr(stage, name))
            for name in STATES
        ]
        rows.append((break_name(stage.name), draw_shares(shares, f"{stage.name}: {label}"), *numbers))
    keys = (join((draw_key(name), name)) for name in STATES)
    has_course = any(stage.name in course for stage in processes)
    heading = ("stage", _make_time_axis(report.series) if has_course else "", *keys)
    return [table(heading, rows, caption=_STATE_WORDS, text=range(2))]


def _split_rest(shares: Mapping[str, Sequence[float]], starting: float) -> dict[str, list[float]]:
    """Return all shares over time, including the two that a series does not distinguish: starting and overhead.

    The start comes first. A wait or a call is counted when it ends, so an interval that is mostly uncounted belongs to
    the state that ends it. The rest is overhead.
    """
    full = {name: list(values) for name, values in shares.items()}
    rests = [max(1.0 - sum(values), 0.0) for values in zip(*full.values(), strict=True)]
    left, starts = starting * len(rests), []
    for index, rest in enumerate(rests):
        starts.append(min(rest, left))
        left -= starts[-1]
        rests[index] -= starts[-1]
    end: dict[str, float] = {}
    for index in reversed(range(len(rests))):
        if rests[index] > _MAX_OVERHEAD and end:
            for name, value in end.items():
                full[name][index] += rests[index] * value / sum(end.values())
            rests[index] = 0.0
        else:
            end = {name: values[index] for name, values in full.items() if values[index] > 0}
    return {**full, "starting": starts, "overhead": rests}


def _make_rates(report: Report) -> list[Markup]:
    series = report.series
    if len(series.times_ns) <= 1:
        return []
    sinks = {stage.name: stage for stage in report.stages if stage.kind == "sink"}
    rates = {stage.name: thin(_read_rates(series, stage, sinks.get(stage.name))) for stage in series.stages}
    queues = {hop.target: thin(hop.queued) for hop in series.hops if hop.target != _LAST_TARGET or not sinks}
    top_rate, top_queue = _find_top(rates.values()), _find_top(queues.values())
    rate_text = f"0 to {format_rate(top_rate)} items/s"
    queue_text = f"0 to {format_rate(top_queue)} items"
    workers = {stage.name: thin(stage.workers) for stage in series.stages if stage.workers}
    top_workers = max(map(max, workers.values()), default=0)
    workers_text = f"0 to {format_count(round(top_workers), 'workers')}"
    rows = [
        (
            break_name(name if name != _LAST_TARGET else report.consumer.name),
            draw_lines({0: rates[name]}, top_rate, f"{name}: rate over time, {rate_text}") if name in rates else "",
            draw_lines({0: queues[name]}, top_queue, f"before {name}: queue over time, {queue_text}")
            if name in queues
            else "",
            draw_lines({0: workers[name]}, top_workers, f"{name}: workers over time, {workers_text}")
            if name in workers
            else "",
        )
        for name in {**rates, **queues}
    ]
    axis = _make_time_axis(series)
    heading = (
        "stage",
        join((f"rate, {rate_text}", axis)),
        join((f"queue before it, {queue_text}", axis)),
        join((f"workers, {workers_text}", axis)),
    )
    columns = 4 if workers else 3
    caption = (
        "All stages on the scale of the heading; bursts above it are cut. The longest queue is before the bottleneck."
    )
    shown = [row[:columns] for row in rows]
    return [table(heading[:columns], shown, caption=caption, text=range(columns)), *_make_memory(series)]


def _read_rates(series: Series, stage: StageSeries, sink: StageReport | None) -> Sequence[float]:
    """Return the items/s of a process. A sink counts the parts that it writes, so its rate is scaled to items."""
    parts = sum(stage.items_per_s) * series.times_ns[-1] / len(series.times_ns) / 1e9
    items_per_part = sink.source_items / parts if sink is not None and parts else 1.0
    return [rate * (items_per_part or 1.0) for rate in stage.items_per_s]


def _make_time_axis(series: Series) -> Markup:
    middle, end = (format_ns(series.times_ns[-1] * share) for share in (0.5, 1.0))
    return element("span", *(element("span", text) for text in ("0 s", middle, end)), class_="axis")


def _find_top(courses: Iterable[Sequence[float]]) -> float:
    """Return the end of the scale that all lines share."""
    return max((sorted(values)[int((len(values) - 1) * _USUAL_SHARE)] for values in courses if values), default=0.0)


def _make_memory(series: Series) -> list[Markup]:
    sampled = {
        "PSS of the workers (memory that n processes share counts as 1/n)": series.pss_bytes,
        "RSS of the workers (shared memory counts in each)": series.rss_bytes,
    }
    lines = {"shared memory in use": [float(size) for size in series.shared_memory_bytes]}
    for name, points in sampled.items():
        if len(points) > 1:
            lines[name] = [_read_at(points, time) for time in series.times_ns]
    lines = {name: thin(values) for name, values in lines.items() if any(values)}
    if not lines:
        return []
    top = max(map(max, lines.values()))
    text = f"0 to {format_bytes(top)}"
    chart = draw_lines(dict(enumerate(lines.values())), top, f"Memory of all workers over time, {text}")
    legend = element("ul", *(element("li", draw_key(str(n)), name) for n, name in enumerate(lines)), class_="legend")
    return [element("p", f"Memory of all workers, {text}", class_="caption"), legend, _make_time_axis(series), chart]


def _read_at(points: Sequence[Any], time_ns: int) -> float:
    """Return the last sample up to a time, or the first sample if all are later."""
    return float(next((point.bytes for point in reversed(points) if point.time_ns <= time_ns), points[0].bytes))


def _make_stages(report: Report) -> list[Markup]:
    used = [each for each in COUNT_COLUMNS if each.heading and any(getattr(s, each.field) for s in report.stages)]
    heading = ("stage", "workers", "items in", "items out", "call, p50", "p90", "p99", "CPU time", "memory")
    rows = [(*_make_stage_row(stage), *(f"{getattr(stage, each.field):,}" for each in used)) for stage in report.stages]
    caption = "Items that a stage ran on, and the time of one call of its function"
    return [table((*heading, *(each.heading for each in used)), rows, caption=caption)] if rows else []


def _make_stage_row(stage: StageReport) -> tuple[Content, ...]:
    run = stage.run_ns
    return (
        join(("+ " if stage.fused_into else "", break_name(stage.name))),
        "fused" if stage.fused_into else f"{stage.workers:,}",
        f"{stage.items:,}",
        format_count(stage.outputs, stage.output_unit) if stage.outputs else "",
        *(format_ns(value) if run.max else "" for value in (run.p50, run.p90, run.p99)),
        format_ns(stage.cpu_ns) if stage.cpu_ns else "",
        format_bytes(stage.pss_bytes) if stage.pss_bytes else "",
    )


def _make_slowest(report: Report) -> list[Markup]:
    rows = [
        (
            f"{slow.label} (item {slow.item})" if slow.label else f"item {slow.item}",
            slow.stage,
            format_ns(slow.run_ns),
            format_ns(slow.queue_ns),
        )
        for slow in report.slowest
    ]
    heading = ("item", "stage", "in its function", "in the queue before it")
    return [table(heading, rows, caption="Without the first item of each worker", text=range(2))] if rows else []


def _make_hops(report: Report) -> list[Markup]:
    if not report.hops:
        return []
    words = (join((element("dt", word), element("dd", meaning))) for word, meaning in _HOP_WORDS.items())
    heading = ("hop", "travels by", "why", "messages", "each", "cost, p50", "p99", "queue, p50", "saved")
    rows = []
    for hop in report.hops:
        figures = [
            format_bytes(hop.bytes.total / max(hop.messages.total, 1)),
            *map(format_ns, (hop.cost_ns.p50, hop.cost_ns.p99, hop.phases.queue_ns.p50)),
            format_ns(hop.saved_ns) if hop.saved_ns else "",
        ]
        is_call = hop.transport.mode == "local"
        facts = (_describe_transport(hop), hop.transport.reason, f"{hop.messages.total:,}")
        rows.append((_name(hop), *facts, *([""] * len(figures) if is_call else figures)))
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
    caption = "A message, sending and receiving together"
    made = table(heading, rows, caption=caption, text=range(3))
    return [element("dl", *words, class_="words"), made, *changes, *_make_phases(report), *_make_sizes(report)]


def _describe_transport(hop: HopReport) -> str:
    """Return the transport kinds of the messages of a hop, the most frequent first."""
    carrier = hop.transport.carrier
    names = _TRANSPORTS if carrier in _TRANSPORTS else _TRANSPORTS | {"shared_memory": carrier}
    counts = {name: getattr(hop.messages, key) for key, name in names.items()}
    used = sorted((name for name, count in counts.items() if count), key=lambda name: -counts[name])
    return ", ".join(used) or hop.transport.mode.replace("_", " ")


def _make_phases(report: Report) -> list[Markup]:
    hops = [hop for hop in report.hops if hop.transport.mode != "local"]
    used = [name for name in _PHASES if any(getattr(hop.phases, f"{name}_ns").max for hop in hops)]
    rows = [
        (
            _name(hop),
            *(format_ns(getattr(hop.phases, f"{name}_ns").p50) for name in used),
            *map(format_ns, (hop.predicted.measured_median_ns, hop.predicted.median_ns)),
        )
        for hop in hops
    ]
    heading = ("hop", *(name.replace("_", " ") for name in used), "sum", "predicted")
    caption = "Phases of a message, p50; predicted by the calibration of this machine without other load"
    return [table(heading, rows, caption=caption)] if used else []


def _make_sizes(report: Report) -> list[Markup]:
    """Return the messages by size, with the cost of such a message by this machine's calibration."""
    rows = [
        (
            _name(hop),
            f"{format_bytes(size.min_bytes)} to {format_bytes(size.max_bytes)}",
            f"{size.messages:,}",
            *(_predict(report.calibration.get(name), size) for name in ("pipe", "copied")),
            format_bytes(hop.transport.threshold_bytes) if hop.transport.threshold_bytes > 0 else "",
        )
        for hop in report.hops
        for size in hop.sizes
    ]
    heading = ("hop", "size of a message", "messages", "cost by pipe", "by shared memory", "from this size: shared")
    caption = "Messages by size, with the cost by the calibration of this machine"
    return [table(heading, rows, caption=caption, text=range(2))] if rows else []


def _predict(curve: Any, size: SizeCount) -> str:
    """Return the cost of the largest message of a range, by a curve of any version; "" above its last point."""
    if not isinstance(curve, Mapping):
        return ""
    points = list(zip(curve.get("sizes", ()), curve.get("ns", ()), strict=False))
    for (low, low_ns), (high, high_ns) in pairwise(points):
        if size.max_bytes <= high and high > low:
            share = max(size.max_bytes - low, 0) / (high - low)
            return format_ns(low_ns + (high_ns - low_ns) * share)
    return ""


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


def _make_trust(report: Report) -> list[Markup]:
    overhead, host, memory = report.run.timing_overhead, report.host, report.memory
    versions = ", ".join(f"{name} {version}" for name, version in sorted(host.versions.items()))
    facts: dict[str, str] = {
        "timing overhead": f"{format_ns(overhead.ns_per_hop)} per hop ({overhead.how or 'not determined'})",
        "accuracy": "percentiles within 2 %; maxima and means exact",
        "shared memory": f"{format_bytes(memory.arena_peak_bytes)} at its peak, limit "
        f"{format_bytes(memory.arena_limit_bytes)}; {memory.copied_out_items:,} items copied out",
        "host": f"{host.cpus:,} CPUs, {format_bytes(host.memory_bytes)}, Linux {host.kernel}, Python {host.python}",
        "versions": versions,
        "calibration of": str(report.calibration.get("measured_at", "")),
        "config": report.config_path,
        "config, SHA-256": report.config_sha256,
        "schema": report.schema,
        "course over time": "" if report.series.times_ns else "none: an older version, or a very short run",
    }
    rows = [(name, text) for name, text in facts.items() if text]
    return [table(("what", "value"), rows, caption="Where the figures come from", text=range(2))]


def _make_rest_note(count: int) -> list[Markup]:
    rest = count - _MAX_EVENTS
    return [element("p", f"and {rest:,} more in the report's JSON", class_="note")] if rest > 0 else []


def _name(hop: HopReport) -> str:
    return f"{hop.source} → {hop.target}"


# ------------------------------------------------------------------ the page, and the fragment


def render_html(report: Report) -> str:
    """Return the report as one HTML page that needs no network.

    >>> Path("report.html").write_text(render_html(report), encoding="utf-8")  # doctest: +SKIP
    """
    toggle = element("button", "Light / dark", id="theme", type="button", hidden=True)
    head = join(
        (
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", f"{report.name}: report of a run"),
            element("style", _read("summary.css"), _read("page.css")),
        )
    )
    main = element("main", make_summary(report), *make_sections(report))
    script = element("script", _read("script.js"))
    body = element("body", _make_header(report, toggle), main, script, class_="stagepipe")
    return f"<!DOCTYPE html>\n{element('html', element('head', head), body, lang='en')}\n"


def render_notebook(report: Report) -> str:
    """Return the figures, the verdict and the picture of the pipeline as a fragment for a notebook.

    Its style names its elements only, and needs no script. It follows the theme of Jupyter, VS Code and Colab.

    >>> from IPython.display import HTML  # doctest: +SKIP
    >>> HTML(render_notebook(report))  # doctest: +SKIP
    """
    content = join((_make_header(report), make_summary(report)))
    return element("div", element("style", _read("summary.css")), content, class_="stagepipe")


def _make_header(report: Report, *buttons: Markup) -> Markup:
    note = element("span", describe_run(report.run, report.stages), class_="note")
    return element("header", element("h1", report.name), note, *buttons)


def _read(name: str) -> Markup:
    return Markup(files("stagepipe.report.render").joinpath(name).read_text(encoding="utf-8"))
