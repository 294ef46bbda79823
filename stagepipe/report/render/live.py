"""Draws a current run: for `stagepipe top`, the progress bar of `stagepipe run`, and a notebook.

`stagepipe.report.live.COLUMNS` defines the tables. Nothing is wider than the terminal: facts and columns that do not
fit are left out, the least important first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.console import ConsoleOptions, RenderableType
from rich.text import Text

from stagepipe.core import format_bytes, format_percent, format_rate
from stagepipe.report.live import BAR_HEADING, COLUMNS, LiveColumn, LiveHop, LiveRun, LiveStage
from stagepipe.report.render.tables import (
    COLUMN_GAP_CHARS,
    FoldingTable,
    TableColumn,
    TerminalView,
    draw_legend,
    draw_share_bar,
)

View = Literal["headline", "progress", "top"]

_MAX_NAME_CHARS = 32
"""Maximum width of a name: the name of a row with many fused stages would push the figures away."""
_MAX_NAME_SHARE = 0.35
"""Maximum share of the terminal's width for a name."""
_OTHER_LINES = {"top": 8, "progress": 6}
"""Number of lines of a view that are not rows, including one for text printed during the run."""
_STATE_STYLES = {"starting": "yellow", "running": "green", "ended": "dim"}


def render_live_run(
    run: LiveRun, view: View = "top", total: int | None = None, *, fits_height: bool = False
) -> RenderableType:
    """Return a run for `rich.console.Console.print`: its progress, its limit, and a line for each row.

    Args:
        run: The figures.
        view: The facts and columns to draw: all of `stagepipe top`, fewer as below `stagepipe run`, or one line.
        total: The number of source items, if the run does not know it.
        fits_height: Draw only as many rows as fit the terminal: the rows with the most work.

    """

    def draw(options: ConsoleOptions) -> Iterator[RenderableType]:
        width, height = options.max_width, options.size.height
        if view == "top":
            yield _draw_title(run, total, width)
        else:
            yield _make_line(_fit(_list_progress(run, total), width))
        if view == "headline" or not run.stages or (fits_height and height <= _OTHER_LINES[view]):
            return
        has_change = view == "top" and run.last_change is not None
        room = max(height - _OTHER_LINES[view] - has_change, 1) if fits_height else len(run.stages)
        yield _draw_limit(run, width)
        if has_change:
            text = run.format_last_change("->" if options.ascii_only else "→")
            yield _make_line(shorten(text, width), "dim")
        if view == "top":
            yield Text()
        yield FoldingTable("", _make_columns(run, view, room, width, ascii_only=options.ascii_only))
        if len(run.stages) > room:
            yield Text(f"  and {len(run.stages) - room + 1:,} less busy", style="dim")
        if view == "top":
            yield draw_legend(ascii_only=options.ascii_only, has_starting=False)

    return TerminalView(draw)


def _draw_title(run: LiveRun, total: int | None, width: int) -> Text:
    """Draw two lines: the run with its progress, and its process and memory."""
    name = shorten(run.name, min(_MAX_NAME_CHARS, width // 3))
    memory = f"{format_bytes(run.shared_memory_bytes)} of {format_bytes(run.shared_memory_limit_bytes)}"
    facts = [f"process {run.pid}", f"shared memory {memory}"]
    if run.samples_out != run.items_out:
        facts.append(f"{format_rate(run.samples_per_s)} samples/s out")
    first = _fit([run.state, *_list_progress(run, total)], width - len(name) - 2)
    line = Text.assemble((name, "bold"), "  ", (run.state, _STATE_STYLES[run.state]), first[len(run.state) :])
    return Text("\n").join([line, Text(_fit(facts, width), style="dim")])


def _list_progress(run: LiveRun, total: int | None) -> list[str]:
    """List `1,234 of 2,000 items in, 3 files out`, `62 %`, `345/s`, `elapsed 0:20` and `ETA 0:12`."""
    total = total if run.items_total is None else run.items_total
    facts = [run.format_items(total), *([format_percent(min(run.items_done / total, 1.0))] if total else [])]
    is_going = run.state != "ended" and (total is None or run.items_done < total)
    if run.items_per_s and is_going:
        facts.append(f"{format_rate(run.items_per_s)}/s")
    facts.append(f"elapsed {format_clock(run.elapsed_ns / 1e9)}")
    if run.starting:
        facts.append(f"starting {', '.join(run.starting)}")
    elif total is not None and run.items_per_s and is_going:
        facts.append(f"ETA {format_clock((total - run.items_done) / run.items_per_s)}")
    return facts


def _draw_limit(run: LiveRun, width: int) -> Text:
    """Draw one line: the row that currently limits the run, and the share of its time that it works."""
    stage = next((stage for stage in run.stages if stage.name == run.limited_by), None)
    if stage is None:
        text = f"starting {', '.join(run.starting)}" if run.starting else "no limit: no stage works most of its time"
        return _make_line(shorten(text, width), "dim")
    prefix = {"source": "the source ", "sink": "the sink "}.get(stage.kind, "")
    workers = f"its {stage.workers} workers work" if stage.workers > 1 else "it works"
    text = f" limits the run: {workers} {format_percent(stage.work)} of the time"
    if stage.kind == "consumer":
        text += "; the pipeline keeps up"
    if stage.kind == "source":
        prefix, name = "the ", "source"
    else:
        name = shorten(format_stage_name(stage), max(width - len(prefix) - len(text), 8))
    return _make_line(Text.assemble(prefix, (name, "bold red"), text))


def _make_columns(run: LiveRun, view: View, room: int, width: int, *, ascii_only: bool) -> list[TableColumn]:
    rows = run.pair_rows()
    if len(rows) > room:  # readers look for the busiest rows
        kept = sorted(run.stages, key=lambda stage: -stage.work)[: max(room - 1, 1)]
        rows = [row for row in rows if row[0] in kept]
    name_chars = min(_MAX_NAME_CHARS, int(width * _MAX_NAME_SHARE))
    names = [_draw_name(stage, name_chars, is_limiting=stage.name == run.limited_by) for stage, _ in rows]
    used = max(name.cell_len for name in names)
    shown = _choose_columns([column for column in COLUMNS if view in column.views], rows, width - used)
    return [
        TableColumn("  stage", names),
        *(
            TableColumn(
                column.heading,
                [_draw_cell(column, *row, run=run, ascii_only=ascii_only) for row in rows],
                is_left_aligned=column.heading == BAR_HEADING,
            )
            for column in shown
        ),
    ]


def _choose_columns(
    columns: Sequence[LiveColumn], rows: Sequence[tuple[LiveStage, LiveHop]], width: int
) -> list[LiveColumn]:
    """Return the columns that fit, preferring the most important ones."""
    chosen = []
    for column in sorted(columns, key=lambda column: column.rank):
        needed = max(column.width, len(column.heading)) + COLUMN_GAP_CHARS
        if needed <= width and not (column.only_if_any and not any(column.cell(*row) for row in rows)):
            chosen.append(column)
            width -= needed
    return [column for column in columns if column in chosen]


def _draw_cell(column: LiveColumn, stage: LiveStage, hop: LiveHop, *, run: LiveRun, ascii_only: bool) -> Text:
    if column.heading == BAR_HEADING:
        if stage.is_starting:
            return Text("starting".ljust(column.width), style="yellow")
        rest = max(1 - stage.busy - stage.starved - stage.blocked, 0.0) if stage.covered_ns else 0.0
        shares = {"busy": stage.busy, "overhead": rest, "blocked": stage.blocked, "starved": stage.starved}
        return draw_share_bar(shares, column.width, ascii_only=ascii_only)
    text = column.cell(stage, hop) if not stage.is_starting or column.is_count else ""
    style = "bold red" if column.heading == "busy" and stage.name == run.limited_by else ""
    return Text(text.rjust(column.width), style=style)


def _draw_name(stage: LiveStage, chars: int, *, is_limiting: bool) -> Text:
    name = shorten(format_stage_name(stage), chars - 2)
    return Text(f"> {name}", style="bold red") if is_limiting else Text(f"  {name}")


def format_stage_name(stage: LiveStage) -> str:
    """Format the stages of a row.

    >>> format_stage_name(LiveStage(name="crop", fused=("resize",)))
    'crop + resize'
    """
    return " + ".join((stage.name, *stage.fused))


def shorten(text: str, chars: int) -> str:
    """Shorten a text in the middle, where names differ least.

    >>> shorten("decode_photographs_from_archive", 20)
    'decode_phot...rchive'
    """
    if len(text) <= chars:
        return text
    kept = max(chars - 3, 2)
    return f"{text[: kept - kept * 2 // 5]}...{text[len(text) - kept * 2 // 5 :]}"


def _fit(facts: Sequence[str], width: int) -> str:
    """Join as many facts as fit into a line; cut the first one if necessary."""
    line = facts[0][:width]
    for fact in facts[1:]:
        if len(line) + 2 + len(fact) <= width:
            line += f"  {fact}"
    return line


def _make_line(text: str | Text, style: str = "") -> Text:
    line = Text(text, style=style) if isinstance(text, str) else text
    line.no_wrap, line.overflow = True, "crop"
    return line


def format_clock(seconds: float) -> str:
    """Format minutes and seconds, or hours too.

    >>> format_clock(75), format_clock(7265)
    ('1:15', '2:01:05')
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:,}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
