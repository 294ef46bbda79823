"""Iterations of a pipeline: a position in an epoch, the next epoch, and the current iteration.

Runs in the consumer's process. A pipeline that has not started uses this module, so it imports no engine.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from stagepipe.core import MAX_EPOCH, Cursor, StagepipeError, UsageError, fold_internal_frames

if TYPE_CHECKING:
    from stagepipe.engine.engines import EngineRun


@dataclass(frozen=True)
class EpochPosition:
    """A position in an epoch, after `items_yielded` items. `cursor` belongs to the last item; None at the start."""

    epoch: int = 0
    items_yielded: int = 0
    cursor: Cursor | None = None

    @property
    def is_start(self) -> bool:
        """Whether this is the start of an epoch."""
        return not self.items_yielded and self.cursor is None


class SupportsPosition(Protocol):
    """An iteration that knows its position."""

    has_ended: bool

    def position(self) -> EpochPosition:
        """See `IterationState.position`."""


class PipelineState:
    """The iterations of a pipeline: the next position, and the newest iteration."""

    def __init__(self) -> None:
        """Start with epoch 0."""
        self.next_position = EpochPosition()
        self.closed_reason = ""
        """The error message for iterations after `close`; empty before."""
        self._newest_iteration: SupportsPosition | None = None
        self.active_iteration: SupportsPosition | None = None
        """The newest iteration, from its first item request until no more may be requested."""

    def begin_iteration(self, iteration: SupportsPosition) -> None:
        """Make `iteration` the newest one. Using an earlier one now raises UsageError."""
        self._newest_iteration = iteration
        self.active_iteration = None

    def activate(self, iteration: SupportsPosition, start: EpochPosition) -> None:
        """Let `iteration` yield items after `start`. The next epoch is then the following one, unless it was set.

        Raises UsageError if `iteration` is not the newest one, or if the pipeline is closed.
        """
        if self.closed_reason:
            raise UsageError(self.closed_reason)
        if self._newest_iteration is not iteration:
            message = "a newer iteration of this pipeline has begun; only one can be active at a time"
            if self._newest_iteration is None:
                message = "a state was loaded into this pipeline; start a new iteration to resume from it"
            raise UsageError(message)
        self.active_iteration = iteration
        if self.next_position is start:
            self.next_position = EpochPosition(start.epoch + 1)

    def close(self, reason: str) -> None:
        """Let no iteration yield another item. `reason` is the error message."""
        self.closed_reason = reason
        self.active_iteration = None

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one, from its start or from its loaded position.

        Raises UsageError if `epoch` is not an integer from 0 to 2**32 - 1.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= MAX_EPOCH:
            message = f"set_epoch({epoch!r}): an epoch is an integer of at least 0 and at most {MAX_EPOCH}"
            raise UsageError(message)
        if self.next_position.epoch != epoch:
            self.next_position = EpochPosition(epoch)
        # No epoch is running, so the state describes the next one.
        if self._newest_iteration is not None and self._newest_iteration.has_ended:
            self._newest_iteration = None

    def load_position(self, position: EpochPosition) -> None:
        """Start the next iteration at `position`."""
        self.next_position = position
        self._newest_iteration = self.active_iteration = None

    def position(self) -> EpochPosition:
        """Return the position of the newest iteration, or the start of the next one."""
        return self.next_position if self._newest_iteration is None else self._newest_iteration.position()


_iterators: Final[weakref.WeakSet[EpochIterator]] = weakref.WeakSet()


@atexit.register
def _end_iterations() -> None:
    """End unfinished iterations before the interpreter clears the modules that their generators need."""
    for iterator in list(_iterators):
        iterator.end()


class IterationState:
    """The state of one iteration. The pipeline refers to this and not to the iterator, which refers to the pipeline."""

    def __init__(self, run: EngineRun, start: EpochPosition) -> None:
        """Start before the first item."""
        self.run = run
        self.start = start
        self.items_yielded = 0
        self.has_ended = False

    def position(self) -> EpochPosition:
        """Return the position after the last yielded item; at the end of an epoch, the start of the next one."""
        start = self.start
        if self.has_ended:
            return EpochPosition(start.epoch + 1)
        if not self.items_yielded:
            return start
        return EpochPosition(start.epoch, start.items_yielded + self.items_yielded, self.run.committed_cursor)


class EpochIterator:
    """Iterates over an epoch, or the rest of one. It keeps no reference to yielded items."""

    def __init__(self, state: IterationState, pipeline_state: PipelineState, pipeline: object) -> None:
        """Seek to the start position immediately. The iterator keeps `pipeline` alive."""
        self._state = state
        self._pipeline_state = pipeline_state
        self._pipeline = pipeline
        run = state.run
        start = state.start
        if run.committed_cursor is not None and (start.cursor is not None or not start.items_yielded):
            self._generator = run.iter_epoch(start.epoch, start.cursor)
            self._items: Iterator[Any] = self._generator
        else:  # the saved or current run has no cursor: compute the yielded items again
            self._generator = run.iter_epoch(start.epoch)
            self._items = itertools.islice(self._generator, start.items_yielded, None)
        _iterators.add(self)

    def end(self) -> None:
        """End the iteration, unless another thread is running it: then it ends with the process."""
        with contextlib.suppress(ValueError):
            self._generator.close()

    def __iter__(self) -> Self:
        """Return the iterator."""
        return self

    def __next__(self) -> Any:
        """Return the next item. Raises UsageError if a newer iteration has begun, RunError if the run fails."""
        state = self._state
        if self._pipeline_state.active_iteration is not state:
            if state.has_ended:
                raise StopIteration
            self._pipeline_state.activate(state, state.start)
        state.items_yielded += 1
        try:
            return next(self._items)
        except BaseException as error:
            state.items_yielded -= 1
            if isinstance(error, StopIteration):
                state.has_ended = True
            elif isinstance(error, StagepipeError):
                raise fold_internal_frames(error) from error.__cause__
            raise
