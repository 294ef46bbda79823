"""The processors that the two sides of a contestant run on.

Without pinning, the kernel puts a pair of processes on one processor in one run and on two in the next, and keeps them
there. The same contestant then takes the sum of the work of both sides in one run, and the larger of the two in the
other. That is up to a factor of two, and would look like a difference between contestants.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


class Placement:
    """Pins this thread to the first processor, and what is started in `on_other_cpus` to the others.

    It changes nothing on a machine with one processor, or if `pinned` is False.
    """

    def __init__(self, *, pinned: bool) -> None:
        allowed = sorted(os.sched_getaffinity(0))
        self.pinned = pinned and len(allowed) > 1
        self._receiver_cpus, self._other_cpus = set(allowed[:1]), set(allowed[1:])
        if self.pinned:
            os.sched_setaffinity(0, self._receiver_cpus)

    @contextmanager
    def on_other_cpus(self) -> Iterator[None]:
        """Run processes and threads that are started inside on the other processors, and this thread until the exit."""
        if not self.pinned:
            yield
            return
        os.sched_setaffinity(0, self._other_cpus)
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._receiver_cpus)

    @property
    def description(self) -> str:
        """Describe the placement for the reader of the figures."""
        if not self.pinned:
            return "The kernel places the processes."
        return "The receiver has its own processor; the senders share the others."
