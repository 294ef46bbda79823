"""An outlook as tables for the terminal. Imports rich, so the command line alone imports it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from stagepipe.core.units import format_bytes, format_ns
from stagepipe.plan.outlook.model import Advice, Hop, Outlook, Piece, Stage
from stagepipe.report.fold import Column, Fold

_PIECES = 6
"""Pieces of an item that are listed; the JSON has them all."""

_WHOLE = 100
"""Items a second from which a decimal says nothing."""


def render(outlook: Outlook) -> RenderableType:
    """The outlook for `rich.console.Console.print`: stages, hops with their pieces, reasons, memory, advice.

    It fits 80 columns.

    >>> Console().print(render(outlook))  # doctest: +SKIP
    """
    return _View(outlook)


class _View:
    """Waits for the console, as what is drawn depends on its encoding."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        outlook, arrow = self._outlook, "->" if options.ascii_only else "→"
        machine = outlook.machine
        yield Text(outlook.name, style="bold")
        yield Text(
            f"{outlook.items:,} items probed, one at a time, on {machine.cpus} CPUs and "
            f"{format_bytes(machine.memory_bytes)} of memory"
        )
        for line in outlook.chosen:
            yield Text(line, style="cyan")
        yield Text()
        yield Fold("Stages", _stage_columns(outlook.stages))
        yield _faint("CPU: of the process, an item of the source, its sides of the hops included.")
        yield Text()
        yield Fold("Hops", _hop_columns(outlook.hops, arrow))
        yield _faint("Cost in either mode: of all, with its pickling; below it, of each piece alone.")
        yield from _reasons(outlook.hops, arrow)
        yield Text()
        if outlook.fusions:
            yield Fold("If fused, each pair alone", _fusion_columns(outlook))
            yield Text()
        yield Text("Memory", style="bold")
        yield Text(_memory(outlook))
        yield Text()
        yield _advice(outlook, arrow)


def _faint(text: str) -> Text:
    return Text(text, style="dim")


def _stage_columns(stages: tuple[Stage, ...]) -> list[Column]:
    heads = [stage.process == stage.name for stage in stages]
    return [
        Column("stage", [s.name if head else f"+ {s.name}" for s, head in zip(stages, heads, strict=True)]),
        Column("workers", [f"{s.workers}" if head else "fused" for s, head in zip(stages, heads, strict=True)]),
        Column("wants", [f"{s.wants}" if head else "" for s, head in zip(stages, heads, strict=True)]),
        Column("an item", [format_ns(s.run_ns) if s.items else "" for s in stages]),
        Column("items", [f"{s.items:.3g}" for s in stages]),
        Column("CPU", [format_ns(s.cpu_ns) if s.cpu_ns else "" for s in stages]),
        Column("memory", [format_bytes(s.memory_bytes) if s.memory_bytes else "" for s in stages]),
    ]


def _hop_columns(hops: tuple[Hop, ...], arrow: str) -> list[Column]:
    rows = [row for hop in hops for row in _hop_rows(hop, arrow)]
    names, dtypes, sizes, largest, modes, pipe, shared = zip(*rows, strict=True)
    return [
        Column("hop", names),
        Column("", dtypes, left=True),
        Column("size", sizes),
        *([Column("up to", largest)] if any(largest) else []),
        Column("goes by", modes, left=True),
        Column("pipe", pipe),
        Column("memory", shared),
    ]


_Row = tuple[str | Text, str, str, str, str, str, str]


def _hop_rows(hop: Hop, arrow: str) -> Iterator[_Row]:
    name = Text(f"{hop.source} {arrow} {hop.target}", style="bold")
    mode = "a call" if hop.mode == "local" else hop.mode.replace("_", " ")
    if hop.cost is None:
        yield name, "", "", "", mode, "", ""
        return
    size = hop.pickle_bytes + sum(piece.nbytes for piece in hop.pieces if piece.mode != "pickle")
    cost = hop.cost
    yield name, "", format_bytes(size), "", mode, format_ns(cost.pipe_ns), format_ns(cost.shared_memory_ns)
    for piece in hop.pieces[:_PIECES]:
        yield _piece_row(piece)
    if len(hop.pieces) > _PIECES:
        rest = hop.pieces[_PIECES:]
        yield f"  {len(rest)} more", "", format_bytes(sum(piece.nbytes for piece in rest)), "", "", "", ""
    yield "  the pickle", "", format_bytes(hop.pickle_bytes), "", _way(hop.pickle_mode), "", ""


def _piece_row(piece: Piece) -> _Row:
    name, size, largest = f"  {piece.name}", format_bytes(piece.nbytes), format_bytes(piece.most_bytes)
    if largest == size:
        largest = ""
    if piece.mode == "pickle":
        return name, piece.dtype, size, largest, "the pickle", "", ""
    way = "as it lies" if piece.in_arena and piece.mode != "pipe" else _way(piece.mode)
    return name, piece.dtype, size, largest, way, format_ns(piece.pipe_ns), format_ns(piece.shared_memory_ns)


def _way(mode: str) -> str:
    return "memory" if mode == "shared_memory" else mode


def _reasons(hops: tuple[Hop, ...], arrow: str) -> Iterator[RenderableType]:
    for hop in hops:
        if hop.mode != "local":
            yield Padding(_faint(f"{hop.source} {arrow} {hop.target}: {hop.reason}"), (0, 0, 0, 2), expand=False)


def _fusion_columns(outlook: Outlook) -> list[Column]:
    fusions, now = outlook.fusions, outlook.items_per_s
    return [
        Column("stage", [each.stage for each in fusions]),
        Column("in the process of", [each.into for each in fusions], left=True),
        Column("saves an item", [format_ns(each.saved_ns) for each in fusions]),
        Column(
            "foretold",
            [
                f"cannot be: {each.why_not}"
                if each.why_not
                else f"{_rate(each.per_s)} ({_percent(each.per_s / now - 1)})"
                for each in fusions
            ],
            left=True,
        ),
    ]


def _memory(outlook: Outlook) -> str:
    memory, machine = outlook.memory, outlook.machine
    return (
        f"The workers hold {format_bytes(memory.workers_bytes)}; beside them the run may take "
        f"{format_bytes(memory.shared_limit_bytes)} of shared memory, of the machine's "
        f"{format_bytes(machine.memory_bytes)}."
    )


def _advice(outlook: Outlook, arrow: str) -> Panel:
    told = f"Foretold: {_rate(outlook.items_per_s)}. " if outlook.items_per_s else ""
    lines: list[RenderableType] = [Text(f"{told}{_sentence(outlook.reason)}", style="bold")]
    if told and not outlook.advice:
        lines.append(Text("No edit is expected to help by more than 10 %."))
    for number, advice in enumerate(outlook.advice):
        lines.append(Text(_step(advice, number, arrow)))
        lines.append(Text.assemble("try: ", (" ".join(advice.edits), "bold green")))
    return Panel(Group(*lines), title="Advice", title_align="left", border_style="cyan")


def _step(advice: Advice, number: int, arrow: str) -> str:
    gain = _percent(advice.after_per_s / advice.before_per_s - 1)
    rates = f"{_number(advice.before_per_s)} {arrow} {_rate(advice.after_per_s)} ({gain})"
    return f"{'Then: ' if number else ''}{advice.words} Foretold: {rates}."


def _percent(gain: float) -> str:
    return f"{gain * 100:+.0f} %"


def _sentence(words: str) -> str:
    """A sentence begins with a capital, unless it begins with a stage's name."""
    return f"{words[0].upper()}{words[1:]}." if words.startswith(("the ", "whoever ")) else f"{words}."


def _rate(per_s: float) -> str:
    return f"{_number(per_s)} items/s"


def _number(per_s: float) -> str:
    return f"{per_s:,.{0 if per_s >= _WHOLE else 1}f}"
