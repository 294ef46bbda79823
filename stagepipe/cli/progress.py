"""A run's progress on stderr: lines that are redrawn on a terminal, otherwise a line every 10 s.

In the calling process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from stagepipe.cli.standard_streams import print_to_stderr
from stagepipe.core import format_percent, format_rate

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from stagepipe.report import Progress, StageProgress

_LINE_INTERVAL_NS: Final = 10_000_000_000
"""Time between two plain lines: 10 s, so that the log of a long run stays readable."""

_MAX_NAME_CHARS: Final = 32
"""A process with many fused stages has a long name; its figures must stay near it."""


class ProgressDisplay:
    """Show a run's progress while it is entered.

    `total` is the number of items of the source, if known; a `Progress` may set it later. With `quiet` nothing is
    written. On a terminal, what is printed to stderr meanwhile stands above the display.

    >>> with ProgressDisplay(total=2000, quiet=False) as display:  # doctest: +SKIP
    ...     display.update(progress)
    """

    def __init__(self, total: int | None, quiet: bool) -> None:
        self._total = total
        self._is_quiet = quiet
        self._next_line_ns = _LINE_INTERVAL_NS
        self._live: Live | None = None
        self._last_progress: Progress | None = None

    def __enter__(self) -> Self:
        """Start drawing if stderr is a terminal that can redraw lines."""
        if not self._is_quiet and sys.stderr.isatty():
            console = _make_console()
            if console.is_interactive:  # not with TERM=dumb
                self._live = _start_live(console)
                self._live.update(_make_line("starting"), refresh=True)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the terminal. The first line stays in its last state, the lines of the stages go."""
        if self._live is not None:
            live, self._live = self._live, None
            if self._last_progress is not None:
                live.update(_draw_headline(self._last_progress, self._total))
            live.stop()

    def update(self, progress: Progress) -> None:
        """Show the current progress. It is cheap, so call it for every new `Progress`."""
        if self._is_quiet:
            return
        if progress.items_total is not None:
            self._total = progress.items_total
        if self._live is not None:
            self._last_progress = progress
            self._live.update(_draw(progress, self._total, self._live.console.size.height), refresh=True)
        elif progress.elapsed_ns >= self._next_line_ns:
            # The next multiple of 10 s, so that lines neither drift nor pile up with a slow caller.
            self._next_line_ns = (progress.elapsed_ns // _LINE_INTERVAL_NS + 1) * _LINE_INTERVAL_NS
            print_to_stderr(format_progress_line(progress, self._total))


def format_progress_line(progress: Progress, total: int | None) -> str:
    """Format the plain line: items of the source that are through, and their rate.

    >>> format_progress_line(pipeline.progress(), 2000)  # doctest: +SKIP
    'stagepipe: 20.0 s  1,234 of 2,000 items  345/s  busiest decode'
    """
    parts = [f"{progress.elapsed_ns / 1e9:.1f} s", _format_items(progress, total)]
    if progress.items_per_s:
        parts.append(f"{format_rate(progress.items_per_s)}/s")
    if progress.starting:
        parts.append(f"starting {', '.join(progress.starting)}")
    if progress.busiest:
        parts.append(f"busiest {progress.busiest}")
    return "stagepipe: " + "  ".join(parts)


def _format_items(progress: Progress, total: int | None) -> str:
    return f"{progress.items_done:,} items" if total is None else f"{progress.items_done:,} of {total:,} items"


def _make_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True)  # a long line of a worker is left to the terminal, which wraps it


def _start_live(console: Console) -> Live:
    from rich.live import Live

    live = Live(
        console=console,
        auto_refresh=False,
        vertical_overflow="crop",
        redirect_stdout=_is_same_terminal(),  # elsewhere items may be written to stdout, and it must not be touched
    )
    live.start()
    # rich hides the cursor, and a run that is stopped by Ctrl-Z or killed would leave it hidden.
    console.show_cursor(True)
    return live


def _is_same_terminal() -> bool:
    """Whether stdout is the terminal of stderr: what is printed there would tear the display."""
    return sys.stdout.isatty() and os.fstat(sys.stdout.fileno()).st_rdev == os.fstat(sys.stderr.fileno()).st_rdev


def _draw(progress: Progress, total: int | None, height: int) -> RenderableType:
    """Draw the whole display, with no more lines than the terminal has: it would scroll."""
    from rich.console import Group

    headline = _draw_headline(progress, total)
    stages = list(progress.stages)
    room = height - 3  # the headline, the headings, and the line for what is printed meanwhile
    if not stages or room < 1:
        return headline
    hidden = max(len(stages) - room, 0)
    if hidden:  # the busiest stages are what one looks for
        kept = sorted(stages, key=lambda stage: -stage.busy)[: max(room - 1, 1)]
        hidden = len(stages) - len(kept)
        stages = [stage for stage in stages if stage in kept]
    note = [_make_line(f"  and {hidden:,} less busy", style="dim")] if hidden else []
    return Group(headline, _draw_stages(stages, progress.stages[0]), *note)


def _draw_headline(progress: Progress, total: int | None) -> Text:
    """Draw the line `1,234 of 2,000 items  62 %  345/s  elapsed 0:20  ETA 0:12`."""
    parts = [
        _format_items(progress, total),
        *([format_percent(min(progress.items_done / total, 1.0))] if total else []),
    ]
    is_going = total is None or progress.items_done < total
    if progress.items_per_s and is_going:
        parts.append(f"{format_rate(progress.items_per_s)}/s")
    parts.append(f"elapsed {format_clock(progress.elapsed_ns / 1e9)}")
    if progress.starting:
        parts.append(f"starting {', '.join(progress.starting)}")
    elif total is not None and progress.items_per_s and is_going:
        parts.append(f"ETA {format_clock((total - progress.items_done) / progress.items_per_s)}")
    return _make_line("  ".join(parts))


def _draw_stages(stages: list[StageProgress], source: StageProgress) -> Table:
    """Draw a line for each stage, as wide as its figures need. There is no queue before the source."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 3, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True, overflow="crop")
    for _ in range(3):
        grid.add_column(justify="right", no_wrap=True, overflow="crop")
    grid.add_row("  stage", "rate", "busy", "queue", style="dim")
    for stage in stages:
        queue = "" if stage is source else f"{stage.queued:,.1f}"
        figures = (f"{format_rate(stage.items_per_s)}/s", format_percent(stage.busy), queue)
        grid.add_row(
            _make_line(f"  {format_stage_name(stage.name, stage.fused)}"),
            *(("starting", "", "") if stage.is_starting else figures),
        )
    return grid


def format_stage_name(first: str, fused: Sequence[str]) -> str:
    """Format the stages of a process, shortened.

    >>> format_stage_name("crop", ("resize",))
    'crop + resize'
    """
    name = " + ".join((first, *fused))
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 3]}..."


def _make_line(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="crop")


def format_clock(seconds: float) -> str:
    """Format minutes and seconds, or hours too.

    >>> format_clock(75), format_clock(7265)
    ('1:15', '2:01:05')
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:,}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
