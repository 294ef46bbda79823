"""Says, once a run, that `memory` holds fewer items than the window, as the first of them show.

It is no error: the gate admits fewer at a time, and workers may wait for them. On the supervisor's thread.
"""

from __future__ import annotations

import logging

from stagepipe.core.units import format_bytes
from stagepipe.plan import Plan
from stagepipe.runtime.gate import MEMORY_SHARE
from stagepipe.timing import Board

_log = logging.getLogger("stagepipe")


class Crowding:
    """Looks at what the gates have left on the board."""

    def __init__(self, plan: Plan, board: Board) -> None:
        """Nothing is known yet."""
        self._plan, self._board, self._told = plan, board, False

    def look(self) -> None:
        """Tell of the first stretch whose window does not fit."""
        for number, stretch in enumerate(self._plan.stretches):
            crowded = None if self._told else self._board.crowded(number)
            if crowded is not None:
                self._told = True
                _log.warning("%s", crowding(*crowded, stretch.window, self._plan.memory_bytes))


def crowding(item_bytes: int, fitting: int, window: int, memory_bytes: int) -> str:
    """The sentence.

    >>> crowding(12_000_000, 5, 16, 64 << 20)
    'an item takes about 12 MB of shared memory on its way, so 5 at a time fit `memory` (67 MB), and not the window of \
16: workers may wait; with `memory: 229MiB` or more they need not'
    """
    wanted_mib = -int(-window * item_bytes / MEMORY_SHARE // (1 << 20))
    return (
        f"an item takes about {format_bytes(item_bytes)} of shared memory on its way, so {fitting} at a time fit "
        f"`memory` ({format_bytes(memory_bytes)}), and not the window of {window}: workers may wait; with "
        f"`memory: {wanted_mib}MiB` or more they need not"
    )
