"""A report as tables for the terminal. The one module of this layer that imports rich; `stagepipe run` prints it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from stagepipe.core.units import format_bytes, format_ns
from stagepipe.report.fold import Column, Fold
from stagepipe.report.load import CONSUMER
from stagepipe.report.model import Consumer, Hop, Percentiles, Report, Run, Stage
from stagepipe.report.record import PHASES

_BAR = 12
"""Characters of the bar that shows how a stage spent its time."""

_SHARES = (
    ("busy", "green", "█", "#"),
    ("overhead", "yellow", "▓", "+"),
    ("blocked", "magenta", "▒", "="),
    ("starved", "blue", "░", "-"),
    ("starting", "bright_black", "·", "."),
)
"""Shares of a stage's time, in the order of the bar: colour, character, and character where there is no UTF-8."""

_WAYS = (("call", "local"), ("pipe", "pipe"), ("memory", "shared_memory"), ("both", "mixed"))
"""Ways of a message: heading and field of `Messages`."""

_ROWS = 5
"""Dead letters, restarts and slow items that are shown; the JSON has them all."""

_WHOLE = 100
"""Samples per second from which a decimal says nothing."""

_NO_BREAK = "\N{NO-BREAK SPACE}"

_STATUS = {"finished": "green", "failed": "red", "interrupted": "yellow"}


def render(report: Report) -> RenderableType:
    """The report for `rich.console.Console.print`: run, stages, hops, why, what went wrong, and the verdict.

    It fits 80 columns and uses more where there are more.

    >>> Console().print(render(report))  # doctest: +SKIP
    """
    return _View(report)


class _View:
    """Waits for the console, as what is drawn depends on its encoding; `Fold` sees to the width."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        report, ascii_only = self._report, options.ascii_only
        yield from _run_lines(report)
        if report.stages:
            yield Text()
            yield Fold("Stages", _stage_columns(report.stages, ascii_only=ascii_only))
            yield _legend(ascii_only=ascii_only)
            troubled = [s for s in report.stages if s.errors or s.skipped or s.retries or s.crashes]
            if troubled:
                yield Text()
                yield Fold("Trouble", _trouble_columns(troubled))
        if report.hops:
            labels = [_label(hop, ascii_only=ascii_only) for hop in report.hops]
            yield Text()
            yield Fold("Hops", _hop_columns(report.hops, labels))
            yield from _reasons(report.hops, labels)
            yield Text()
            yield Fold("Phases of a message, p50", _phase_columns(report.hops, labels))
        yield from _events(report)
        yield Text()
        yield _verdict(report)


def render_summary(report: Report) -> RenderableType:
    """Two lines, for a run that failed: its error, which is said besides, is what counts then."""
    return Group(_status(report), Text(", ".join(_run_facts(report.run))))


def _status(report: Report) -> Text:
    status = report.run.status
    return Text.assemble((report.name, "bold"), " ", (status, f"bold {_STATUS.get(status, 'default')}"))


def _run_lines(report: Report) -> Iterator[RenderableType]:
    run = report.run
    line = _status(report)
    if run.error:
        line.append(f": {(run.error.strip().splitlines() or [''])[0]}", style="red")
    yield line
    yield Text(", ".join(_run_facts(run)))
    if report.consumer.name != CONSUMER:
        yield Text(", ".join(_consumer_facts(report.consumer)))
    memory = report.memory
    if memory.arena_peak_bytes:
        limit = f" of {format_bytes(memory.arena_limit_bytes)}" if memory.arena_limit_bytes else ""
        copied = f", {memory.copied_out_items:,} items copied out" if memory.copied_out_items else ""
        yield Text(f"shared memory: at most {format_bytes(memory.arena_peak_bytes)}{limit}{copied}", style="dim")
    if run.timing_overhead.ns_per_hop:
        yield Text(f"timing costs {format_ns(run.timing_overhead.ns_per_hop)} a hop", style="dim")


def _run_facts(run: Run) -> Iterator[str]:
    yield f"{run.items_in:,} items in"
    yield f"{run.items_out:,} out"
    if run.samples_out != run.items_out:
        yield f"{run.samples_out:,} samples"
    if run.items_skipped:
        yield f"{run.items_skipped:,} skipped"
    yield f"{run.items_per_s:,.{0 if run.items_per_s >= _WHOLE else 1}f} samples/s"
    yield f"{format_ns(run.wall_ns)} in all"
    if run.first_item_ns:
        yield f"first item after {format_ns(run.first_item_ns)}"


def _consumer_facts(consumer: Consumer) -> Iterator[str]:
    """Of a training loop: what it waited for input. What waits for the very first item waits for the start."""
    wait_ns = max(consumer.wait_ns - consumer.first_wait_ns, 0)
    share = wait_ns / max(wait_ns + consumer.busy_ns, 1)
    yield f"the {consumer.name} waited {format_ns(wait_ns)} for input ({share * 100:.0f} % of its time)"
    yield f"and {format_ns(consumer.first_wait_ns)} for the first item"
    if consumer.outside_ns:
        yield f"{format_ns(consumer.outside_ns)} were outside the loop"


def _stage_columns(stages: Sequence[Stage], *, ascii_only: bool) -> list[Column]:
    memory = [s.pss_bytes or s.rss_bytes for s in stages]
    return [
        Column("stage", [f"+ {s.name}" if s.fused_into else s.name for s in stages]),
        Column("workers", ["fused" if s.fused_into else f"{s.workers:,}" for s in stages]),
        Column("time", [_bar(s, ascii_only=ascii_only) for s in stages], left=True),
        *(Column(name, [_share(s, name) for s in stages]) for name, *_ in _SHARES),
        Column("items", [f"{s.items:,}" for s in stages]),
        Column("run p50", [_time(s.run_ns, "p50") for s in stages]),
        Column("p99", [_time(s.run_ns, "p99") for s in stages]),
        Column("CPU", [format_ns(s.cpu_ns) if s.cpu_ns else "" for s in stages]),
        Column("memory", [format_bytes(size) if size else "" for size in memory]),
    ]


def _trouble_columns(stages: Sequence[Stage]) -> list[Column]:
    counts = ("errors", "skipped", "retries", "crashes")
    return [
        Column("stage", [stage.name for stage in stages]),
        *(c for name in counts for c in _where_any(name, [getattr(s, name) for s in stages])),
    ]


def _hop_columns(hops: Sequence[Hop], labels: Sequence[str]) -> list[Column]:
    sizes = [hop.bytes.inline + hop.bytes.copied + hop.bytes.zero_copy for hop in hops]
    return [
        Column("hop", labels),
        Column("mode", [hop.transport.mode.replace("_", " ") for hop in hops], left=True),
        *(c for name, way in _WAYS for c in _where_any(name, [getattr(hop.messages, way) for hop in hops])),
        Column("bytes", [format_bytes(size) if size else "" for size in sizes]),
        Column("cost p50", [_time(hop.cost_ns, "p50") for hop in hops]),
        Column("p99", [_time(hop.cost_ns, "p99") for hop in hops]),
        Column("predicted", [format_ns(hop.predicted.taken_ns) if hop.predicted.taken_ns else "" for hop in hops]),
        Column("error", [_error(hop) for hop in hops]),
        Column("saved", [format_ns(hop.saved_ns) if hop.saved_ns else "" for hop in hops]),
    ]


def _phase_columns(hops: Sequence[Hop], labels: Sequence[str]) -> list[Column]:
    """The phases that any hop has, in the order in which an item passes them."""
    columns = [Column("hop", labels)]
    for phase in PHASES:
        cells = [_time(getattr(hop.phases, phase), "p50") for hop in hops]
        if any(cells):
            columns.append(Column(phase.removesuffix("_ns").replace("_", " "), cells))
    return columns


def _where_any(heading: str, counts: Sequence[int]) -> Iterator[Column]:
    """A column of counts, if any of them is not zero."""
    if any(counts):
        yield Column(heading, [f"{count:,}" if count else "" for count in counts])


def _time(values: Percentiles, name: str) -> str:
    """One number of a distribution; nothing where nothing was measured."""
    return format_ns(getattr(values, name)) if values.max else ""


def _share(stage: Stage, name: str) -> str:
    """A share in percent; a fused stage has none of its own."""
    return "" if stage.fused_into else f"{getattr(stage, name) * 100:.0f} %"


def _bar(stage: Stage, *, ascii_only: bool) -> Text:
    """The shares as a bar: each gets the characters between its rounded ends, so that they fill it exactly."""
    bar = Text()
    if stage.fused_into:
        return bar
    before = 0.0
    for name, colour, character, plain in _SHARES:
        after = before + getattr(stage, name)
        bar.append((plain if ascii_only else character) * (round(after * _BAR) - round(before * _BAR)), style=colour)
        before = after
    return bar


def _legend(*, ascii_only: bool) -> Text:
    legend = Text("  ")
    for name, colour, character, plain in _SHARES:
        legend.append(plain if ascii_only else character, style=colour).append(f" {name}  ", style="dim")
    return legend


def _label(hop: Hop, *, ascii_only: bool) -> str:
    return f"{hop.source} {'->' if ascii_only else '→'} {hop.target}"


def _reasons(hops: Sequence[Hop], labels: Sequence[str]) -> Iterator[RenderableType]:
    """Why each hop goes as it does: beneath the table, as a reason is a sentence."""
    for hop, label in zip(hops, labels, strict=True):
        if hop.transport.reason:
            yield _note(label, hop.transport.reason)
        for change in hop.transport.changes:
            sizes = f"{format_bytes(change.from_bytes)} to {format_bytes(change.to_bytes)}"
            yield _note(label, f"threshold moved from {sizes} after {change.messages:,} messages: {change.reason}")


def _note(label: str, words: str) -> RenderableType:
    return Padding(Text.assemble((label, "bold"), f"  {words}", style="dim"), (0, 0, 0, 2), expand=False)


def _error(hop: Hop) -> str:
    """How far the prediction was off: `+12 %` where more was paid."""
    return f"{(hop.predicted.error - 1) * 100:+.0f} %" if hop.predicted.error else ""


def _events(report: Report) -> Iterator[RenderableType]:
    """What went wrong or took long, a few of each."""
    yield from _some("Restarts", [f"{r.stage} worker {r.worker}: {r.cause}, item {r.item}" for r in report.restarts])
    letters = [
        f"item {d.item} at {d.stage} after {d.attempts:,} {'attempt' if d.attempts == 1 else 'attempts'}: {d.error}"
        for d in report.dead_letters
    ]
    yield from _some("Dead letters", letters)
    slow = [
        f"item {s.item} at {s.stage}: {format_ns(s.run_ns)}, {format_ns(s.queue_ns)} in the queue"
        for s in report.slowest
    ]
    yield from _some("Slowest items", slow)


def _some(title: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    if not lines:
        return
    more = f" ({_ROWS} of {len(lines):,})" if len(lines) > _ROWS else ""
    yield Text()
    yield Text(f"{title}{more}", style="bold")
    for line in lines[:_ROWS]:
        yield Padding(Text((line.splitlines() or [""])[0]), (0, 0, 0, 2), expand=False)


@dataclass(frozen=True)
class _Prose:
    """Text whose lines do not break between a number and its %; rich's own wrapping breaks at any blank."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = self.text.replace(" %", f"{_NO_BREAK}%")
        for line in textwrap.wrap(kept, options.max_width, break_on_hyphens=False):
            yield Text(line.replace(_NO_BREAK, " "), style=self.style)


def _verdict(report: Report) -> Panel:
    verdict = report.verdict
    lines: list[RenderableType] = [_Prose(verdict.sentence, "bold")]
    if verdict.advice:
        lines.append(_Prose(verdict.advice))
    if verdict.fix:
        lines.append(Text.assemble("try: ", (verdict.fix, "bold green")))
    return Panel(
        Group(*lines), title=f"Verdict (confidence {verdict.confidence:.0%})", title_align="left", border_style="cyan"
    )
