"""A report as tables for the terminal. The one module of this layer that imports rich; `stagepipe run` prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from stagepipe.core.units import format_bytes, format_ns
from stagepipe.report.fold import Column, Fold
from stagepipe.report.model import Hop, Percentiles, Report, Run, Stage
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
        if report.hops:
            labels = [_label(hop, ascii_only=ascii_only) for hop in report.hops]
            yield Text()
            yield Fold("Hops", _hop_columns(report.hops, labels))
            yield from _reasons(report.hops, labels)
        yield from _events(report)
        yield Text()
        yield _verdict(report)


def _run_lines(report: Report) -> Iterator[RenderableType]:
    run = report.run
    line = Text.assemble((report.name, "bold"), " ", (run.status, f"bold {_STATUS.get(run.status, 'default')}"))
    if run.error:
        line.append(f": {(run.error.strip().splitlines() or [''])[0]}", style="red")
    yield line
    yield Text(", ".join(_run_facts(run)))
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
    yield f"{run.items_per_s:,.4g}/s" if run.items_per_s < 1000 else f"{run.items_per_s:,.0f}/s"  # noqa: PLR2004
    yield f"{format_ns(run.wall_ns)} in all"
    if run.first_item_ns:
        yield f"first item after {format_ns(run.first_item_ns)}"


def _stage_columns(stages: Sequence[Stage], *, ascii_only: bool) -> list[Column]:
    return [
        Column("stage", [f"  {s.name}" if s.fused_into else s.name for s in stages], left=True),
        Column("workers", [f"{s.workers:,}" if not s.fused_into else "fused" for s in stages]),
        Column("items", [f"{s.items:,}" for s in stages]),
        Column("time", [_bar(s, ascii_only=ascii_only) for s in stages], left=True),
        *(Column(name, [_share(s, name) for s in stages]) for name, *_ in _SHARES),
        Column("run p50", [_time(s.run_ns, "p50") for s in stages]),
        Column("p99", [_time(s.run_ns, "p99") for s in stages]),
        Column("CPU", [format_ns(s.cpu_ns) if s.cpu_ns else "" for s in stages]),
        Column("memory", [format_bytes(s.pss_bytes or s.rss_bytes) if s.pss_bytes or s.rss_bytes else "" for s in stages]),
        *_where_any("errors", stages, lambda s: s.errors),
        *_where_any("skipped", stages, lambda s: s.skipped),
        *_where_any("retries", stages, lambda s: s.retries),
        *_where_any("crashes", stages, lambda s: s.crashes),
    ]


def _hop_columns(hops: Sequence[Hop], labels: Sequence[str]) -> list[Column]:
    phases = ((phase, phase.removesuffix("_ns").replace("send_wait", "wait")) for phase in PHASES)
    return [
        Column("hop", labels, left=True),
        Column("mode", [hop.transport.mode.replace("_", " ") for hop in hops], left=True),
        *(c for heading, way in _WAYS for c in _where_any(heading, hops, lambda h, way=way: getattr(h.messages, way))),
        Column("bytes", [_size(hop.bytes.inline + hop.bytes.copied + hop.bytes.zero_copy) for hop in hops]),
        Column("cost p50", [_time(hop.cost_ns, "p50") for hop in hops]),
        Column("p99", [_time(hop.cost_ns, "p99") for hop in hops]),
        Column("saved", [format_ns(hop.saved_ns) if hop.saved_ns else "" for hop in hops]),
        *(Column(heading, [_time(getattr(hop.phases, phase), "p50") for hop in hops]) for phase, heading in phases),
    ]


def _where_any[T](heading: str, rows: Sequence[T], count: Callable[[T], int]) -> Iterator[Column]:
    """A column of counts, if any of them is not zero."""
    if any(count(row) for row in rows):
        yield Column(heading, [f"{count(row):,}" if count(row) else "" for row in rows])
