"""Which rank of a machine requests which epoch. On the leader.

The listener thread and the leader's training thread write it, the dispatcher thread reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from stagepipe.core import RunError
from stagepipe.torch.shared_pipeline.messages import EpochRequest


class EpochRequests:
    """The open requests, the ranks that have closed, and the error that ended everything."""

    def __init__(self, rank_names: list[str], timeout_s: float) -> None:
        """`rank_names` are for messages; a rank waits up to `timeout_s` for the others to start an epoch."""
        self._rank_names = rank_names
        self._timeout_s = timeout_s
        self._condition = threading.Condition()
        self._requests: dict[int, EpochRequest] = {}
        self._requested_at_s: dict[int, float] = {}
        self._closed_ranks: set[int] = set()
        self.failure: RunError | None = None
        self.is_stopping = False

    def add(self, rank: int, request: EpochRequest) -> None:
        """Record that `rank` starts an iteration."""
        with self._condition:
            self._requests[rank] = request
            self._requested_at_s[rank] = monotonic()
            self._condition.notify_all()

    def close_rank(self, rank: int) -> None:
        """Record that `rank` has closed its loader."""
        with self._condition:
            self._closed_ranks.add(rank)
            self._requests.pop(rank, None)
            self._condition.notify_all()

    def fail(self, error: RunError) -> bool:
        """End dispatching with an error. False if it had failed before; the first error stays."""
        with self._condition:
            is_first = self.failure is None
            self.failure = self.failure or error
            self._condition.notify_all()
        return is_first

    def stop(self) -> None:
        """End dispatching because the leader closes."""
        with self._condition:
            self.is_stopping = True
            self._condition.notify_all()

    # ------------------------------------------------------------------ for the dispatcher

    @property
    def is_over(self) -> bool:
        """Whether dispatching has ended for all ranks."""
        return self.is_stopping or self.failure is not None

    def wants_items(self, rank: int) -> bool:
        """Whether `rank` still waits for items of the iteration that is being dispatched."""
        return rank not in self._requests and rank not in self._closed_ranks and not self.is_over

    def wait_for_all(self, tick: Callable[[], float]) -> dict[int, EpochRequest] | None:
        """Wait until every rank has requested an epoch, and take the requests for the lowest one.

        Ranks that request a later epoch have received all of this one and keep waiting. Returns None once dispatching
        has ended. `tick` runs meanwhile and returns the seconds until it should run again.

        Raises RunError with the missing ranks when a rank has waited too long, and RankClosedError when one has closed
        its loader.
        """
        began_s = monotonic()
        while True:
            pause_s = tick()
            with self._condition:
                if self.is_over:
                    return None
                if len(self._requests) == len(self._rank_names):
                    epoch = min(request.epoch for request in self._requests.values())
                    requests = {rank: request for rank, request in self._requests.items() if request.epoch == epoch}
                    for rank in requests:
                        del self._requests[rank]
                    return requests
                self._raise_if_stalled(began_s)
                self._condition.wait(pause_s)

    def withdraw(self, rank: int) -> EpochRequest | None:
        """Take the request of `rank` without serving it."""
        with self._condition:
            return self._requests.pop(rank, None)

    def _raise_if_stalled(self, began_s: float) -> None:
        waiting = sorted(self._requests)
        if not waiting:
            return
        epoch = min(self._requests[rank].epoch for rank in waiting)
        waiting_names = self._format_ranks(waiting)
        if self._closed_ranks:
            closed_names = self._format_ranks(sorted(self._closed_ranks))
            raise RankClosedError(
                f"{closed_names}: the loader is closed, and {waiting_names} starts epoch {epoch}; "
                "iterate over the loader the same number of times on all ranks"
            )
        if monotonic() - max(began_s, min(self._requested_at_s[rank] for rank in waiting)) > self._timeout_s:
            missing = self._format_ranks([rank for rank in range(len(self._rank_names)) if rank not in self._requests])
            raise RunError(
                f"{missing}: epoch {epoch} was not started within {self._timeout_s:.0f} s, and {waiting_names} waited "
                "for it; iterate over the loader the same number of times on all ranks"
            )

    def _format_ranks(self, ranks: list[int]) -> str:
        return ", ".join(self._rank_names[rank] for rank in ranks)


class RankClosedError(RunError):
    """A rank requests an epoch, and another rank has closed its loader."""
