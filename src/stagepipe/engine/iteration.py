"""One iteration of a pipeline, and where it stands, which outlives it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Self

from stagepipe.engine.inline import InlineRun
from stagepipe.engine.local import LocalRun
from stagepipe.engine.state import Position


class Stand:
    """Where an iteration stands. Its pipeline keeps it, and not the iteration, which keeps the pipeline."""

    def __init__(self, run: LocalRun | InlineRun, begin: Position) -> None:
        """Before the first item."""
        self.run, self.begin = run, begin
        self.yielded, self.asked, self.ended = 0, False, False

    def position(self) -> Position:
        """Behind the last item yielded; behind the last of all, at the start of the next epoch."""
        begin = self.begin
        if self.ended:
            return Position(begin.epoch + 1)
        if not self.yielded:
            return begin
        cursor = self.run.committed if isinstance(self.run, LocalRun) else None
        return Position(begin.epoch, begin.items + self.yielded, cursor)


class Iteration:
    """An epoch, or the rest of one. It keeps nothing of what it has yielded."""

    def __init__(self, stand: Stand, alive: Callable[[Stand], None], entered: Callable[[Position], None]) -> None:
        """Seek at once. `alive` raises where the iteration's time is over; `entered` hears of its first item."""
        self._stand, self._alive, self._entered = stand, alive, entered
        run, begin = stand.run, stand.begin
        if isinstance(run, LocalRun) and (begin.cursor is not None or not begin.items):
            self._items = run.epoch(begin.epoch, begin.cursor)
        else:  # a state of an inline run, or for one: what was yielded is made again
            self._items = itertools.islice(run.epoch(begin.epoch), begin.items, None)

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next item."""
        stand = self._stand
        if stand.ended:
            raise StopIteration
        self._alive(stand)
        if not stand.asked:
            stand.asked = True
            self._entered(stand.begin)
        try:
            item = next(self._items)
        except StopIteration:
            stand.ended = True
            raise
        stand.yielded += 1
        return item
