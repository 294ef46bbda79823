"""Renders a bench for the terminal. Imports rich, so only the command line imports it, in the caller's process."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stagepipe.bench.model import COPIED, HOP_MECHANISMS, PEER_MECHANISMS, PIPE, BenchResult
from stagepipe.core import format_bytes, format_ns
from stagepipe.report import TerminalView


def render_bench(result: BenchResult) -> RenderableType:
    """Render a bench for `rich.console.Console.print`: a row per size, the crossover and notes. Fits 80 columns.

    >>> Console().print(render_bench(result))  # doctest: +SKIP
    """
    parts: tuple[RenderableType, ...] = (
        _make_table(result),
        Text(),
        Text(_make_sentence(result.crossover_summary), style="bold"),
        *map(_dim_text, _make_notes(result)),
    )
    return TerminalView(lambda _: parts)


def _make_table(result: BenchResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("size", justify="right")
    for name in (*HOP_MECHANISMS, *PEER_MECHANISMS):
        table.add_column(
            _format_heading(name), justify="right", header_style="bold cyan" if name in HOP_MECHANISMS else "bold"
        )
    for size in result.sizes_bytes:
        table.add_row(format_bytes(size), *_make_cells(result, size))
    return table


def _format_heading(name: str) -> str:
    return "Shared\nMemory" if name == "SharedMemory" else name.replace(" ", "\n")


def _make_cells(result: BenchResult, nbytes: int) -> Iterator[Text]:
    points = {name: result.get_point(name, nbytes) for name in (*HOP_MECHANISMS, *PEER_MECHANISMS)}
    pair_ns = [point.ns for name in (PIPE, COPIED) if (point := points[name]) is not None]
    for name, point in points.items():
        is_cheaper = point is not None and name in {PIPE, COPIED} and len(pair_ns) > 1 and point.ns == min(pair_ns)
        yield Text(format_ns(point.ns) if point is not None else "", style="bold green" if is_cheaper else "")


def _make_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _make_notes(result: BenchResult) -> Iterator[str]:
    messages = sum(point.count for points in result.points.values() for point in points)
    yield (
        "The work of both sides for a message with one array: pickling, copying, sending, receiving; no waits. "
        f"Medians of {messages:,} messages, interleaved; the interquartile range is {result.relative_iqr:.0%} of the "
        "median."
    )
    yield (
        "pipe, copied, loaned, passed on, cold: how a stagepipe hop carries the message; `auto` takes the cheaper of "
        f"pipe and copied. Each includes {format_ns(result.serialization_ns)} of pickling and reading. Pipe, Queue, "
        "SharedMemory: multiprocessing, with a new SharedMemory object per message."
    )
    host, versions = result.host, result.host.get("versions", {})
    packages = "".join(f", {name} {versions[name]}" for name in ("stagepipe", "numpy") if name in versions)
    yield (
        f"{host.get('cpu', '?')}, {host.get('cpus', '?')} CPUs, {format_bytes(host.get('memory_bytes', 0))}, Linux "
        f"{host.get('kernel', '?')}, Python {host.get('python', '?')}{packages}; load average "
        f"{result.load_average:.1f}; {result.duration_s:.0f} s."
    )


def _dim_text(text: str) -> Text:
    return Text(text, style="dim")
