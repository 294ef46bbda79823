"""A pipeline's iterations: which epoch is next, the one under way, and where it stands, which outlives it."""

from __future__ import annotations

import itertools
from typing import Any, Protocol, Self

from stagepipe.core import UsageError
from stagepipe.engine.inline import InlineRun
from stagepipe.engine.local import LocalRun
from stagepipe.engine.state import Position


class Standpoint(Protocol):
    """Where an iteration stands."""

    ended: bool

    def position(self) -> Position:
        """See `Stand.position`."""


class Standing:
    """A pipeline's half of its iterations: what comes next, and where the newest of them stands."""

    def __init__(self) -> None:
        """The first epoch is next."""
        self.next = Position()
        self.closed = ""
        """Why there is nothing to iterate over any more, once that is so."""
        self._newest: Standpoint | None = None

    def begin(self, newest: Standpoint) -> None:
        """An iteration is made; one before it ends its life here."""
        self._newest = newest

    def entered(self, begin: Position) -> None:
        """An iteration is asked for its first item: the epoch after it is next, unless something else has been said."""
        if self.next is begin:
            self.next = Position(begin.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Let `epoch` be next: from its start, or from its loaded place. UsageError if it is none."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            message = f"set_epoch({epoch!r}): epochs are whole numbers from 0 on"
            raise UsageError(message)
        if self.next.epoch != epoch:
            self.next = Position(epoch)
        if self._newest is not None and self._newest.ended:  # nothing is under way that a state could speak of
            self._newest = None

    def load(self, position: Position) -> None:
        """Go on there, at the next iteration."""
        self.next, self._newest = position, None

    def position(self) -> Position:
        """Where the newest iteration stands, or the next one will begin."""
        return self.next if self._newest is None else self._newest.position()

    def check(self, standpoint: Standpoint) -> None:
        """UsageError if that is not the newest iteration's, or all is closed."""
        if self.closed:
            raise UsageError(self.closed)
        if self._newest is not standpoint:
            message = "a newer iteration of this pipeline has begun; only one can be alive at a time"
            if self._newest is None:
                message = "a state was loaded into this pipeline; begin a new iteration to go on from it"
            raise UsageError(message)


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

    def __init__(self, stand: Stand, standing: Standing, pipeline: object) -> None:
        """Seek at once. `pipeline` is kept alive as long as it is iterated over."""
        self._stand, self._standing, self._pipeline = stand, standing, pipeline
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
        self._standing.check(stand)
        if not stand.asked:
            stand.asked = True
            self._standing.entered(stand.begin)
        try:
            item = next(self._items)
        except StopIteration:
            stand.ended = True
            raise
        stand.yielded += 1
        return item
