"""What a bench found, for the terminal. Imports rich, so the command line alone imports it."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stagepipe.core.units import format_bytes, format_ns
from stagepipe.plan.bench.model import COPIED, HOP, PEERS, PIPE, Bench


def render(bench: Bench) -> RenderableType:
    """The bench for `rich.console.Console.print`: a row a size, the crossover in words, how to read it.

    It fits 80 columns.

    >>> Console().print(render(bench))  # doctest: +SKIP
    """
    return Group(_table(bench), Text(), Text(_capital(bench.crossover), style="bold"), *map(_faint, _notes(bench)))


def _table(bench: Bench) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("size", justify="right")
    for name in (*HOP, *PEERS):
        table.add_column(_short(name), justify="right", header_style="bold cyan" if name in HOP else "bold")
    for size in bench.sizes:
        table.add_row(format_bytes(size), *_cells(bench, size))
    return table


def _short(name: str) -> str:
    return "Shared\nMemory" if name == "SharedMemory" else name.replace(" ", "\n")


def _cells(bench: Bench, size: int) -> Iterator[Text]:
    points = {name: bench.point(name, size) for name in (*HOP, *PEERS)}
    pair = [point.ns for name in (PIPE, COPIED) if (point := points[name]) is not None]
    for name, point in points.items():
        better = point is not None and name in {PIPE, COPIED} and len(pair) > 1 and point.ns == min(pair)
        yield Text(format_ns(point.ns) if point is not None else "", style="bold green" if better else "")


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _notes(bench: Bench) -> Iterator[str]:
    messages = sum(point.count for points in bench.points.values() for point in points)
    yield (
        "What both sides work for a message with one array: pickling, copying, sending, receiving, no waits. "
        f"Medians of {messages:,} messages, all by turns; the quartiles lie {bench.spread:.0%} of the median apart."
    )
    yield (
        "pipe, copied, loaned, passed on, cold: ways of a stagepipe hop; the better of pipe and copied is what `auto` "
        f"takes. {format_ns(bench.besides_ns)} of each are pickling and reading, the same in all. Pipe, Queue, "
        "SharedMemory: multiprocessing's, a SharedMemory segment a message."
    )
    host, versions = bench.host, bench.host.get("versions", {})
    named = "".join(f", {name} {versions[name]}" for name in ("stagepipe", "numpy") if name in versions)
    yield (
        f"{host.get('cpu', '?')}, {host.get('cpus', '?')} CPUs, {format_bytes(host.get('memory_bytes', 0))}, Linux "
        f"{host.get('kernel', '?')}, Python {host.get('python', '?')}{named}; load average {bench.load_average:.1f}; "
        f"{bench.took_s:.0f} s."
    )


def _faint(text: str) -> Text:
    return Text(text, style="dim")
