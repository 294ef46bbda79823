"""How far it is: a bar on a terminal, a plain line now and then elsewhere. On standard error."""

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
    """Enter it, and tell it."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._bar: Bar | None = None
        if self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=self._console)
            self._task = self._bar.add_task("", total=None)
        self._told_at = time.monotonic()

    def __enter__(self) -> Self:
        """Begin to show it."""
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        if self._bar:
            self._bar.stop()

    def show(self, done: int, total: int, text: str) -> None:
        """So many turns are done, and this is next."""
        if self._bar:
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif time.monotonic() - self._told_at > _EVERY_S:
            self._told_at = time.monotonic()
            print(f"{done} of {total}: {text}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """What is done besides the turns."""
        if self._bar:
            self._bar.update(self._task, description=text)
