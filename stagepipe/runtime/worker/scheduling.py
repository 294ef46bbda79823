"""Chooses the worker's scheduling policy, SCHED_OTHER or SCHED_BATCH (sched(7)). In the worker's process.

Under SCHED_OTHER, a process that wakes up may preempt the running one. In a full pipeline that is often its own writer,
in the middle of a send: on a fully loaded machine this cost the writer 100 us and its caches. Under SCHED_BATCH a
reader does not preempt, which costs nothing while items queue anyway. In a pipeline that is not full, somebody waits
for the item, and on a busy machine a batch process would run milliseconds later: there a worker stays SCHED_OTHER.
"""

from __future__ import annotations

import contextlib
import os

from stagepipe.timing import Board

_BACKPRESSURE_MEMORY_NS = 1_000_000_000
"""A segment that blocked its feeder within this time counts as full."""


class SchedulingPolicy:
    """Switches this process between SCHED_OTHER and SCHED_BATCH."""

    def __init__(self, board: Board) -> None:
        """Read from `board` when a feeder was last blocked."""
        self._board = board
        self._is_batch = False

    def update(self, now_ns: int) -> None:
        """Use SCHED_BATCH while admission has blocked a feeder in the last second. `now_ns` is `perf_counter_ns()`."""
        is_batch = now_ns - self._board.last_admission_blocked_ns() < _BACKPRESSURE_MEMORY_NS
        if is_batch != self._is_batch:
            self._is_batch = is_batch
            with contextlib.suppress(OSError):  # a sandbox may forbid it
                os.sched_setscheduler(0, os.SCHED_BATCH if is_batch else os.SCHED_OTHER, os.sched_param(0))
