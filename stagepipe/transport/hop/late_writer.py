"""Writes held entries from a thread of its own while the process is busy with something that takes long.

The process decides before each call whether it is quick; a call that is not, after a hundred that were, would keep what
is held from its reader. This thread bounds that: 10 ms, unless the call keeps the interpreter's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import sleep
from typing import Final

_CHECK_INTERVAL_S: Final = 0.005
_CHECKS_BEFORE_IDLE: Final = 20


class LateWriter:
    """Calls `write_late` every 5 ms while entries are held, and for 100 ms after the last ones."""

    def __init__(self, write_late: Callable[[], bool]) -> None:
        """`write_late` writes what has been held too long, and returns whether anything is or was held since the call.

        The thread starts with the first `watch`.
        """
        self._write_late = write_late
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_watching = False

    def watch(self) -> None:
        """Entries are held from now on. Call it if `is_watching` is False."""
        self.is_watching = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stagepipe-late-writer", daemon=True)
            self._thread.start()
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            self._check_until_idle()

    def _check_until_idle(self) -> None:
        idle_checks = 0
        while idle_checks < _CHECKS_BEFORE_IDLE:
            sleep(_CHECK_INTERVAL_S)
            idle_checks = 0 if self._write_late() else idle_checks + 1
        self.is_watching = False
        if self._write_late():  # held between the last check and the line before
            self.is_watching = True
            self._wanted.set()
