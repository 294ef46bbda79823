"""Which processors the two sides of a contestant run on.

Left alone, the kernel puts a pair of processes now on one processor and now on two, and keeps it there: the same
contestant, started twice, then takes once the sum of what both sides work and once the larger of the two. That is twice
as much, and would be taken for a difference between contestants.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


class Places:
    """The first processor for this thread, the others for every process and thread that is started `elsewhere`.

    Where there is one processor alone, or `pinned` is off, nothing is changed.
    """

    def __init__(self, *, pinned: bool) -> None:
        """Move this thread to its processor."""
        allowed = sorted(os.sched_getaffinity(0))
        self.pinned = pinned and len(allowed) > 1
        self._here, self._elsewhere = set(allowed[:1]), set(allowed[1:])
        if self.pinned:
            os.sched_setaffinity(0, self._here)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is started in here runs on the other processors; so does this thread, meanwhile."""
        if not self.pinned:
            yield
            return
        os.sched_setaffinity(0, self._elsewhere)
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._here)

    @property
    def words(self) -> str:
        """How it is, for the reader of the figures."""
        if not self.pinned:
            return "The kernel places the processes."
        return "The receiver has a processor of its own, the senders the others."
