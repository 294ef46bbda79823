"""A run's progress on stderr: a bar on a terminal, otherwise a plain line every 10 s. In the calling process."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stagepipe.cli.standard_streams import print_to_stderr
from stagepipe.core import format_rate

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from stagepipe.report import Progress

_LINE_INTERVAL_NS = 10_000_000_000
"""Time between two plain lines: 10 s, so that the log of a long run stays readable."""


class ProgressDisplay:
    """Show a run's progress while it is entered.

    `total` is the number of items of the source, if known; a `Progress` may set it later. With `quiet` nothing is
    written.

    >>> with ProgressDisplay(total=2000, quiet=False) as display:  # doctest: +SKIP
    ...     display.update(progress)
    """

    def __init__(self, total: int | None, quiet: bool) -> None:
        self._total = total
        self._is_quiet = quiet
        self._next_line_ns = _LINE_INTERVAL_NS
        self._bar: Bar | None = None
        self._task_id: TaskID | None = None

    def __enter__(self) -> Self:
        """Draw the bar if stderr is a terminal."""
        if not self._is_quiet and sys.stderr.isatty():
            self._bar = _make_bar()
            self._task_id = self._bar.add_task("", total=self._total, rate="", doing="starting")
            self._bar.start()
            # rich hides the cursor, and a run that is stopped by Ctrl-Z or killed would leave it hidden.
            self._bar.console.show_cursor(True)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the terminal and leave the bar in its last state."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, progress: Progress) -> None:
        """Show the current progress. It is cheap, so call it for every new `Progress`."""
        if self._is_quiet:
            return
        if progress.items_total is not None:
            self._total = progress.items_total
        if self._bar is not None and self._task_id is not None:
            self._bar.update(
                self._task_id,
                total=self._total,
                completed=progress.items_in,
                rate=_format_rate(progress),
                doing=_format_activity(progress),
            )
        elif progress.elapsed_ns >= self._next_line_ns:
            # The next multiple of 10 s, so that lines neither drift nor pile up with a slow caller.
            self._next_line_ns = (progress.elapsed_ns // _LINE_INTERVAL_NS + 1) * _LINE_INTERVAL_NS
            print_to_stderr(format_progress_line(progress, self._total))


def format_progress_line(progress: Progress, total: int | None) -> str:
    """Format the plain line.

    >>> format_progress_line(pipeline.progress(), 2000)  # doctest: +SKIP
    'stagepipe: 20.0 s  1,234 of 2,000 items  345 samples/s  busiest decode'
    """
    items = f"{progress.items_in:,} items" if total is None else f"{progress.items_in:,} of {total:,} items"
    parts = [f"{progress.elapsed_ns / 1e9:.1f} s", items, _format_rate(progress), _format_activity(progress)]
    return "stagepipe: " + "  ".join(part for part in parts if part)


def _format_activity(progress: Progress) -> str:
    starting = f"starting {', '.join(progress.starting)}" if progress.starting else ""
    busiest = f"busiest {progress.busiest}" if progress.busiest else ""
    return "  ".join(part for part in (starting, busiest) if part)


def _format_rate(progress: Progress) -> str:
    """Samples per second, or items of the source until the first sample is out: a large batch takes a while."""
    if progress.samples_out:
        return f"{format_rate(progress.samples_per_s)} samples/s"
    return f"{format_rate(progress.items_per_s)} items/s"


def _make_bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    return Bar(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[doing]}", markup=False, style="dim"),
        console=Console(stderr=True),
        transient=False,
        redirect_stdout=False,  # items may be written to stdout: a bar must not touch them
    )
