"""Draws a run that is going: what `stagepipe top` shows. In its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import ConsoleOptions, RenderableType
from rich.text import Text

from stagepipe.cli.progress import format_clock, format_stage_name
from stagepipe.core import format_bytes, format_ns, format_percent, format_rate
from stagepipe.report import FoldingTable, LiveHop, LiveRun, LiveStage, TableColumn, TerminalView


def draw_live_run(run: LiveRun) -> RenderableType:
    """Draw a run: a line about all of it, a line for each process, and the one that limits it."""

    def draw(_: ConsoleOptions) -> Iterator[RenderableType]:
        yield Text("  ".join(_list_facts(run)), style="bold")
        yield Text(_format_limit(run))
        yield Text()
        yield FoldingTable("", _make_columns(run))

    return TerminalView(draw)


def _list_facts(run: LiveRun) -> list[str]:
    """List `thumbnails`, `process 4711`, `running`, `1,234 of 2,000 items` and so on."""
    done = f"{run.items_done:,} items"
    if run.items_total is not None:
        done = f"{run.items_done:,} of {run.items_total:,} items"
    memory = f"{format_bytes(run.shared_memory_bytes)} of {format_bytes(run.shared_memory_limit_bytes)}"
    return [
        run.name,
        f"process {run.pid}",
        run.state,
        done,
        *([format_percent(min(run.items_done / run.items_total, 1.0))] if run.items_total else []),
        f"{format_rate(run.items_per_s)} items/s",
        *([f"{format_rate(run.samples_per_s)} samples/s"] if run.samples_out != run.items_out else []),
        format_clock(run.elapsed_ns / 1e9),
        f"shared memory {memory}",
    ]


def _format_limit(run: LiveRun) -> str:
    stage = next((stage for stage in run.stages if stage.name == run.limited_by), None)
    if stage is None:
        return "no stage works most of its time"
    return f"{stage.name} limits the run: it works {format_percent(stage.work)} of its time"


def _make_columns(run: LiveRun) -> list[TableColumn]:
    """Make a column for each figure. The cost of a hop stands in the line of the stage that it leads to."""
    stages = run.stages
    hops: list[LiveHop | None] = [None, *run.hops]
    is_waiting = [stage.is_starting or not stage.items for stage in stages]

    def column(heading: str, format_stage: Callable[[LiveStage], str]) -> TableColumn:
        return TableColumn(heading, [format_stage(stage) for stage in stages])

    def figures(heading: str, format_stage: Callable[[LiveStage], str]) -> TableColumn:
        cells = ["" if hidden else format_stage(stage) for stage, hidden in zip(stages, is_waiting, strict=True)]
        return TableColumn(heading, cells)

    def costs(heading: str, format_hop: Callable[[LiveHop], str]) -> TableColumn:
        return TableColumn(heading, [format_hop(hop) if hop is not None and hop.messages else "" for hop in hops])

    names = [_draw_name(stage, is_limiting=stage.name == run.limited_by) for stage in stages]
    return [
        TableColumn("  stage", names),
        column("workers", lambda stage: f"{stage.workers:,}"),
        column("rate", lambda stage: "starting" if stage.is_starting else f"{format_rate(stage.items_per_s)}/s"),
        figures("busy", lambda stage: format_percent(stage.busy)),
        figures("starved", lambda stage: format_percent(stage.starved)),
        figures("blocked", lambda stage: format_percent(stage.blocked)),
        TableColumn("queue", ["", *(f"{stage.queued:,.1f}" for stage in stages[1:])]),
        figures("run p50", lambda stage: format_ns(stage.run_ns.p50) if stage.run_ns.p50 else ""),
        costs("hop p50", lambda hop: format_ns(hop.cost_ns.p50)),
        costs("hop p99", lambda hop: format_ns(hop.cost_ns.p99)),
        column("RSS", lambda stage: format_bytes(stage.rss_bytes) if stage.rss_bytes else ""),
        column("errors", lambda stage: f"{stage.errors:,}"),
        column("restarts", lambda stage: f"{stage.restarts:,}"),
    ]


def _draw_name(stage: LiveStage, *, is_limiting: bool) -> Text:
    name = format_stage_name(stage.name, stage.fused)
    return Text(f"> {name}", style="bold") if is_limiting else Text(f"  {name}")
