"""What a pipeline knows of its iterations, before it has started too. In the consumer's process.

It imports neither engine: a pipeline that has not started needs none.
"""

from __future__ import annotations

from typing import Protocol

from stagepipe.core import MAX_EPOCH, UsageError
from stagepipe.engine.position import EpochPosition


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
