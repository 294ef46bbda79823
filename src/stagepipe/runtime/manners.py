"""Whether a worker that is woken may take the processor from whoever has it. In the worker's process.

By itself a reader that is woken may do so (sched(7)). Where the pipeline is full that is its own writer, in the middle
of a send: on a full machine it took 100 us out of it, and the caches with it. As a batch process it waits its turn,
which costs nothing where items queue anyway. Where it is not full an item is waited for, and on a machine that is busy
with other things its turn would come after milliseconds: there a worker is a normal process.
"""

from __future__ import annotations

import contextlib
import os

from stagepipe.timing import Board

_LATELY_NS = 1_000_000_000


class Manners:
    """Which of the two this process is at the moment."""

    def __init__(self, board: Board) -> None:
        """By what the feeders say on the board."""
        self._board = board
        self._batch = False

    def look(self, now: int) -> None:
        """Be a batch process where some feeder was held up lately. `now` in ns."""
        batch = now - self._board.held_up_ns() < _LATELY_NS
        if batch != self._batch:
            self._batch = batch
            with contextlib.suppress(OSError):  # a sandbox may forbid it
                os.sched_setscheduler(0, os.SCHED_BATCH if batch else os.SCHED_OTHER, os.sched_param(0))
