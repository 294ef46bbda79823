"""Renders a forecast as tables for the terminal, in the caller's process. Only the command line imports it (rich)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rich.console import ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.text import Text

from stagepipe.core import format_bytes, format_ns, format_rate
from stagepipe.forecast.model import (
    Forecast,
    FusionForecast,
    HopForecast,
    PieceForecast,
    PlanAdvice,
    StageForecast,
    format_suggestion,
)
from stagepipe.plan import SINK_NAME
from stagepipe.report import FoldingTable, TableColumn, TerminalView, TitledBox, format_gain

_MAX_LISTED_PIECES = 6
"""The most pieces listed per item. The JSON has all of them."""


def render_forecast(forecast: Forecast) -> RenderableType:
    """Render a forecast for `rich.console.Console.print`: stages, hops, reasons, memory and advice. Fits 80 columns.

    >>> Console().print(render_forecast(forecast))  # doctest: +SKIP
    """
    return TerminalView(partial(_draw_forecast, forecast))


def _draw_forecast(forecast: Forecast, options: ConsoleOptions) -> Iterator[RenderableType]:
    arrow = "->" if options.ascii_only else "→"
    machine = forecast.machine
    yield Text(forecast.name, style="bold")
    yield Text(
        f"{forecast.items_probed:,} items probed, one at a time, on {machine.cpus} CPUs ({machine.free_cpus:.1f} free) "
        f"and {format_bytes(machine.memory_bytes)} of memory"
    )
    for line in (*forecast.notes, *forecast.auto_workers):
        yield Text(line, style="cyan")
    yield Text()
    yield FoldingTable("Stages", _make_stage_columns(forecast.stages))
    yield _dim_text("CPU: CPU time of the process per source item, with its sides of the hops.")
    for stage in forecast.stages:
        if stage.when:
            yield _dim_text(f"{stage.name}: runs when {stage.when}; other items pass by.")
    yield Text()
    yield FoldingTable("Hops", _make_hop_columns(forecast.hops, arrow))
    yield _dim_text("pipe, memory: cost in that mode; for a message with pickling, for a piece without.")
    yield from _render_reasons(forecast.hops, arrow)
    yield Text()
    if forecast.fusions:
        yield FoldingTable("If fused, one pair at a time", _make_fusion_columns(forecast))
        yield Text()
    yield Text("Memory", style="bold")
    yield Text(_format_memory(forecast))
    yield Text()
    yield _render_advice(forecast, arrow)


def _dim_text(text: str) -> Text:
    return Text(text, style="dim")


def _make_stage_columns(stages: tuple[StageForecast, ...]) -> list[TableColumn]:
    is_fused = [stage.process != stage.name for stage in stages]
    rows = list(zip(stages, is_fused, strict=True))
    return [
        TableColumn("stage", [f"+ {s.name}" if fused else s.name for s, fused in rows]),
        TableColumn("workers", ["fused" if fused else f"{s.workers}" for s, fused in rows]),
        TableColumn("suggested", [format_suggestion(stage) for stage in stages]),
        TableColumn("per item", [format_ns(s.run_ns) if s.items_per_source_item else "" for s in stages]),
        TableColumn("items", [f"{s.items_per_source_item:.3g}" for s in stages]),
        TableColumn("CPU", [format_ns(s.cpu_ns) if s.cpu_ns else "" for s in stages]),
        TableColumn("memory", [format_bytes(s.memory_bytes) if s.memory_bytes else "" for s in stages]),
    ]


def _make_hop_columns(hops: tuple[HopForecast, ...], arrow: str) -> list[TableColumn]:
    rows = [row for hop in hops for row in _make_hop_rows(hop, arrow)]
    names, dtypes, sizes, largest, modes, pipe, shared = zip(*rows, strict=True)
    return [
        TableColumn("hop", names),
        TableColumn("", dtypes, is_left_aligned=True),
        TableColumn("size", sizes),
        *([TableColumn("up to", largest)] if any(largest) else []),
        TableColumn("mode", modes, is_left_aligned=True),
        TableColumn("pipe", pipe),
        TableColumn("memory", shared),
    ]


_HopRow = tuple[str | Text, str, str, str, str, str, str]


def _make_hop_rows(hop: HopForecast, arrow: str) -> Iterator[_HopRow]:
    name = Text(f"{hop.source} {arrow} {hop.target}", style="bold")
    mode = "a call" if hop.mode == "local" else hop.mode.replace("_", " ")
    if hop.cost is None:
        yield name, "", "", "", mode, "", ""
        return
    size = hop.pickle_bytes + sum(piece.mean_bytes for piece in hop.pieces if piece.mode != "pickle")
    cost = hop.cost
    yield name, "", format_bytes(size), "", mode, format_ns(cost.pipe_ns), format_ns(cost.shared_memory_ns)
    for piece in hop.pieces[:_MAX_LISTED_PIECES]:
        yield _make_piece_row(piece)
    if len(hop.pieces) > _MAX_LISTED_PIECES:
        rest = hop.pieces[_MAX_LISTED_PIECES:]
        yield f"  {len(rest)} more", "", format_bytes(sum(piece.mean_bytes for piece in rest)), "", "", "", ""
    yield "  pickle", "", format_bytes(hop.pickle_bytes), "", _format_mode(hop.pickle_mode), "", ""


def _make_piece_row(piece: PieceForecast) -> _HopRow:
    name, size, largest = f"  {piece.name}", format_bytes(piece.mean_bytes), format_bytes(piece.max_bytes)
    if largest == size:
        largest = ""
    if piece.mode == "pickle":
        return name, piece.dtype, size, largest, "in pickle", "", ""
    mode = "in place" if piece.is_in_arena and piece.mode != "pipe" else _format_mode(piece.mode)
    return name, piece.dtype, size, largest, mode, format_ns(piece.pipe_ns), format_ns(piece.shared_memory_ns)


def _format_mode(mode: str) -> str:
    return "memory" if mode == "shared_memory" else mode


def _render_reasons(hops: tuple[HopForecast, ...], arrow: str) -> Iterator[RenderableType]:
    for hop in hops:
        if hop.mode != "local":
            yield Padding(_dim_text(f"{hop.source} {arrow} {hop.target}: {hop.reason}"), (0, 0, 0, 2), expand=False)


def _make_fusion_columns(forecast: Forecast) -> list[TableColumn]:
    fusions = forecast.fusions
    items_per_s = forecast.items_per_s or forecast.max_items_per_s
    return [
        TableColumn("stage", [fusion.stage for fusion in fusions]),
        TableColumn("into", [fusion.into for fusion in fusions], is_left_aligned=True),
        TableColumn("saves per item", [format_ns(fusion.saved_ns) for fusion in fusions]),
        TableColumn(
            "forecast",
            [_format_fusion(fusion, items_per_s) for fusion in fusions],
            is_left_aligned=True,
        ),
    ]


def _format_fusion(fusion: FusionForecast, current_items_per_s: float) -> str:
    if fusion.unfusable_reason:
        return f"not possible: {fusion.unfusable_reason}"
    gain = format_gain(fusion.items_per_s / current_items_per_s - 1)
    return f"{format_rate(fusion.items_per_s)} items/s ({gain})"


def _format_memory(forecast: Forecast) -> str:
    memory, machine = forecast.memory, forecast.machine
    return (
        f"The workers take {format_bytes(memory.workers_bytes)}, and the run may take up to "
        f"{format_bytes(memory.shared_limit_bytes)} of shared memory; the machine has "
        f"{format_bytes(machine.memory_bytes)}."
    )


def _render_advice(forecast: Forecast, arrow: str) -> RenderableType:
    label = "At most" if forecast.unseen else "Forecast:"
    items_per_s = forecast.items_per_s or forecast.max_items_per_s
    rate = f"{label} {format_rate(items_per_s)} items/s. " if items_per_s else ""
    lines: list[RenderableType] = [Text(f"{rate}{_make_sentence(forecast.bottleneck)}", style="bold")]
    if forecast.unseen and forecast.unseen != (SINK_NAME,):
        lines.append(Text("Let items reach it sooner (smaller batches, other items first), or run the pipeline."))
    elif rate and not forecast.advice:
        lines.append(Text("No config change is expected to gain more than 10 %."))
    for index, advice in enumerate(forecast.advice):
        lines.append(Text(_format_step(advice, index, f"{label} ", arrow)))
        lines.append(Text.assemble("try: ", (" ".join(advice.overrides), "bold green")))
    return TitledBox("Advice", lines)


def _format_step(advice: PlanAdvice, index: int, label: str, arrow: str) -> str:
    before, after = advice.items_per_s_before, advice.items_per_s_after
    rates = f"{format_rate(before)} {arrow} {format_rate(after)} items/s ({format_gain(after / before - 1)})"
    return f"{'Then: ' if index else ''}{advice.text} {label}{rates}."


def _make_sentence(text: str) -> str:
    """Add a capital and a full stop. The name of a stage at the beginning stays as it is."""
    return f"{text[0].upper()}{text[1:]}." if text.startswith("the ") else f"{text}."
