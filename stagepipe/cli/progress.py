"""A run's progress on stderr: lines that are redrawn on a terminal, otherwise a line every 10 s.

In the calling process.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from stagepipe.cli.standard_streams import print_to_stderr

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from stagepipe.report import LiveRun

_LINE_INTERVAL_NS: Final = 10_000_000_000
"""Time between two plain lines: 10 s, so that the log of a long run stays readable."""


class ProgressDisplay:
    """Show a run's progress while it is entered.

    `total` is the number of items of the source, if known; a `LiveRun` may set it later. With `quiet` nothing is
    written. On a terminal, what is printed to stderr meanwhile stands above the display.

    >>> with ProgressDisplay(total=2000, quiet=False) as display:  # doctest: +SKIP
    ...     display.update(progress)
    """

    def __init__(self, total: int | None, quiet: bool) -> None:
        self._total = total
        self._is_quiet = quiet
        self._next_line_ns = _LINE_INTERVAL_NS
        self._live: Live | None = None
        self._last_progress: LiveRun | None = None

    def __enter__(self) -> Self:
        """Start drawing if stderr is a terminal that can redraw lines."""
        if not self._is_quiet and sys.stderr.isatty():
            console = _make_console()
            if console.is_interactive:  # not with TERM=dumb
                self._live = _start_live(console)
                self._live.update("starting", refresh=True)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the terminal. The first line stays in its last state, the lines of the stages go."""
        if self._live is not None:
            live, self._live = self._live, None
            if self._last_progress is not None:
                from stagepipe.report import render_live_run

                live.update(render_live_run(self._last_progress, "headline", self._total))
            live.stop()

    def update(self, progress: LiveRun) -> None:
        """Show the current progress. It is cheap, so call it for every new `LiveRun`."""
        if self._is_quiet:
            return
        if progress.items_total is not None:
            self._total = progress.items_total
        if self._live is not None:
            from stagepipe.report import render_live_run

            self._last_progress = progress
            self._live.update(render_live_run(progress, "progress", self._total, fits_height=True), refresh=True)
        elif progress.elapsed_ns >= self._next_line_ns:
            # The next multiple of 10 s, so that lines neither drift nor pile up with a slow caller.
            self._next_line_ns = (progress.elapsed_ns // _LINE_INTERVAL_NS + 1) * _LINE_INTERVAL_NS
            from stagepipe.report import format_progress_line

            print_to_stderr(format_progress_line(progress, self._total))


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
