"""The progress on standard error: a bar on a terminal, otherwise a plain line every 30 seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

_EVERY_S = 30.0


class Progress:
    """Shows the progress inside its `with` block."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._bar: Bar | None = None
        if self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=self._console)
            self._task = self._bar.add_task("", total=None)
        self._printed_s = time.monotonic()

    def __enter__(self) -> Self:
        """Start the bar."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bar."""
        if self._bar:
            self._bar.stop()

    def show(self, done: int, total: int, text: str) -> None:
        """Show how many turns are done, and the next one."""
        if self._bar:
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif time.monotonic() - self._printed_s > _EVERY_S:
            self._printed_s = time.monotonic()
            print(f"{done} of {total}: {text}", file=sys.stderr, flush=True)

    def describe(self, text: str) -> None:
        """Show work other than a turn."""
        if self._bar:
            self._bar.update(self._task, description=text)
