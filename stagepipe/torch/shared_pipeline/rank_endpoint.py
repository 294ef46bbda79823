"""The interface that leader and follower share. Used in each rank's training process."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from stagepipe.core import RunError, SkipCount, SourceIdentity, with_error_type
from stagepipe.engine import EpochPosition
from stagepipe.torch.shared_pipeline.messages import IterationFailed
from stagepipe.transport import Lease


class RankItem(NamedTuple):
    """A rank's item of round `round_number` of the epoch, counted from 0.

    `box` is a list that holds the item alone; the reader pops it, so that no other reference remains. `cursor` is the
    position after the round, from which a resume goes on; None if there is no such position.
    """

    round_number: int
    cursor: bytes | None
    box: list[Any]


class RankEndpoint(Protocol):
    """Receives a rank's items."""

    def begin_iteration(self, position: EpochPosition) -> int:
        """Start an iteration at `position` and return its number."""

    def receive(self, iteration: int) -> RankItem | None:
        """Return the next item of that iteration, or None at the end of the epoch. Raises RunError."""

    def length(self) -> int | None:
        """Return the items per epoch for all ranks of the machine together; None if unknown. Raises RunError."""

    def wait_for_source(self) -> SourceIdentity | None:
        """Return what the source reads, which this waits for; None if that is not known. Raises RunError."""

    def count_skips(self, position: EpochPosition) -> SkipCount | None:
        """Return what the machine's pipeline has skipped up to a position. Only the leader counts."""

    def resume_skip_count(self, count: SkipCount) -> None:
        """Let `max_skipped` count on from a saved position; on the leader."""

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the lease that holds these bytes; None if no lease does."""

    def close(self) -> None:
        """Disconnect and release everything."""


def to_run_error(failure: IterationFailed) -> RunError:
    """Convert a failure message to the error to raise."""
    error = RunError(
        failure.message, stage=failure.stage, worker=failure.worker, item=failure.item, trace=failure.trace
    )
    return with_error_type(error, failure.error_type)
