"""Where a run stands, on stderr: a bar on a terminal, a plain line every 10 s elsewhere. In the calling process."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from stagepipe.report.record import Progress

_EVERY_NS = 10_000_000_000
"""Time between two plain lines: the design's 10 s, so that the log of a night stays readable."""


class ProgressDisplay:
    """Shows a run's progress while it is entered.

    `total` is the number of items that the source will give, where known (a `Progress` may tell it later);
    with `quiet` nothing is written.

    >>> with ProgressDisplay(total=2000, quiet=False) as display:  # doctest: +SKIP
    ...     display.update(progress)
    """

    def __init__(self, total: int | None, quiet: bool) -> None:
        self._total = total
        self._quiet = quiet
        self._next_line_ns = _EVERY_NS
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Draw the bar, on a terminal."""
        if not self._quiet and sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task("", total=self._total, rate="", doing="starting")
            self._bar.start()
            # rich hides it. A run that is stopped by Ctrl-Z, or killed, would leave the shell without one.
            self._bar.console.show_cursor(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was, the last state of the bar on it."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, progress: Progress) -> None:
        """Show where the run stands now; cheap, so call it as often as news come."""
        if self._quiet:
            return
        if progress.items_total is not None:
            self._total = progress.items_total
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                total=self._total,
                completed=progress.items_in,
                rate=_rate(progress),
                doing=_doing(progress),
            )
        elif progress.elapsed_ns >= self._next_line_ns:
            # The next multiple of 10 s, so that a slow caller does not make the lines drift or pile up.
            self._next_line_ns = (progress.elapsed_ns // _EVERY_NS + 1) * _EVERY_NS
            print(line(progress, self._total), file=sys.stderr, flush=True)


def line(progress: Progress, total: int | None) -> str:
    """The plain line.

    >>> from stagepipe.report import Progress
    >>> line(Progress(20 * 10**9, 1234, None, 1200, 1200, 345.2, (), "decode"), 2000)
    'stagepipe: 20.0 s  1,234 of 2,000 items  345 samples/s  busiest decode'
    """
    items = f"{progress.items_in:,} items" if total is None else f"{progress.items_in:,} of {total:,} items"
    parts = [f"{progress.elapsed_ns / 1e9:.1f} s", items, _rate(progress), _doing(progress)]
    return "stagepipe: " + "  ".join(part for part in parts if part)


def _doing(progress: Progress) -> str:
    starting = f"starting {', '.join(progress.starting)}" if progress.starting else ""
    busiest = f"busiest {progress.busiest}" if progress.busiest else ""
    return "  ".join(part for part in (starting, busiest) if part)


def _rate(progress: Progress) -> str:
    """Samples a second; until the first one is out, the source's items: behind a large batch that takes a while."""
    if progress.samples_out:
        return f"{_number(progress.samples_per_s)} samples/s"
    return f"{_number(progress.items_per_s)} items/s"


def _number(rate: float) -> str:
    return f"{rate:.1f}" if rate < 10 else f"{rate:,.0f}"  # noqa: PLR2004 - two digits are enough


def _bar() -> Bar:
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
