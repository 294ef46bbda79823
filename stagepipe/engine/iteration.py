"""The iterations of a pipeline: the next epoch, the current one and its position. In the consumer's process."""

from __future__ import annotations

import itertools
from typing import Any, Protocol, Self

from stagepipe.core import MAX_EPOCH, UsageError
from stagepipe.engine.inline import InlineRun
from stagepipe.engine.local import LocalRun
from stagepipe.engine.state import EpochPosition


class SupportsPosition(Protocol):
    """An iteration that knows its position."""

    has_ended: bool

    def position(self) -> EpochPosition:
        """See `IterationState.position`."""


class PipelineState:
    """What a pipeline knows of its iterations: the next position, and the newest iteration."""

    def __init__(self) -> None:
        """Start with epoch 0."""
        self.next_position = EpochPosition()
        self.closed_reason = ""
        """The error message of an iteration after the close; empty before."""
        self._newest_iteration: SupportsPosition | None = None

    def begin_iteration(self, iteration: SupportsPosition) -> None:
        """Make `iteration` the newest one. Using an earlier one now raises UsageError."""
        self._newest_iteration = iteration

    def advance_epoch(self, start: EpochPosition) -> None:
        """Make the epoch after `start` the next one, unless another was set. Called at an iteration's first item."""
        if self.next_position is start:
            self.next_position = EpochPosition(start.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one: from its start, or from its loaded position.

        Raises UsageError if `epoch` is not an integer from 0 to 2**32 - 1.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= MAX_EPOCH:
            message = f"set_epoch({epoch!r}): an epoch is an integer of at least 0 and at most {MAX_EPOCH}"
            raise UsageError(message)
        if self.next_position.epoch != epoch:
            self.next_position = EpochPosition(epoch)
        # No epoch is under way, so the state describes the next one.
        if self._newest_iteration is not None and self._newest_iteration.has_ended:
            self._newest_iteration = None

    def load_position(self, position: EpochPosition) -> None:
        """Start the next iteration at `position`."""
        self.next_position = position
        self._newest_iteration = None

    def position(self) -> EpochPosition:
        """Return the position of the newest iteration, or where the next one will start."""
        return self.next_position if self._newest_iteration is None else self._newest_iteration.position()

    def require_newest(self, iteration: SupportsPosition) -> None:
        """Raise UsageError if `iteration` is not the newest one, or the pipeline is closed."""
        if self.closed_reason:
            raise UsageError(self.closed_reason)
        if self._newest_iteration is not iteration:
            message = "a newer iteration of this pipeline has begun; only one can be active at a time"
            if self._newest_iteration is None:
                message = "a state was loaded into this pipeline; start a new iteration to resume from it"
            raise UsageError(message)


class IterationState:
    """The state of one iteration. The pipeline refers to it and not to the iterator, which refers to the pipeline."""

    def __init__(self, run: LocalRun | InlineRun, start: EpochPosition) -> None:
        """Start before the first item."""
        self.run = run
        self.start = start
        self.items_yielded = 0
        self.has_started = False
        self.has_ended = False

    def position(self) -> EpochPosition:
        """Return the position after the last item yielded; at the end of an epoch, the start of the next one."""
        start = self.start
        if self.has_ended:
            return EpochPosition(start.epoch + 1)
        if not self.items_yielded:
            return start
        cursor = self.run.committed_cursor if isinstance(self.run, LocalRun) else None
        return EpochPosition(start.epoch, start.items_yielded + self.items_yielded, cursor)


class EpochIterator:
    """Iterates over an epoch, or the rest of one. It keeps no reference to the items that it has yielded."""

    def __init__(self, state: IterationState, pipeline_state: PipelineState, pipeline: object) -> None:
        """Seek to the start position at once. The iterator keeps `pipeline` alive."""
        self._state = state
        self._pipeline_state = pipeline_state
        self._pipeline = pipeline
        run = state.run
        start = state.start
        if isinstance(run, LocalRun) and (start.cursor is not None or not start.items_yielded):
            self._items = run.iter_epoch(start.epoch, start.cursor)
        else:  # the state is from or for an inline run, which has no cursor: compute the yielded items again
            self._items = itertools.islice(run.iter_epoch(start.epoch), start.items_yielded, None)

    def __iter__(self) -> Self:
        """Return the iterator."""
        return self

    def __next__(self) -> Any:
        """Return the next item. Raises UsageError if a newer iteration has begun, RunError if the run fails."""
        state = self._state
        if state.has_ended:
            raise StopIteration
        self._pipeline_state.require_newest(state)
        if not state.has_started:
            state.has_started = True
            self._pipeline_state.advance_epoch(state.start)
        try:
            item = next(self._items)
        except StopIteration:
            state.has_ended = True
            raise
        state.items_yielded += 1
        return item
