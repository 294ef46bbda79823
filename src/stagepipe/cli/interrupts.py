"""Ctrl-C, SIGTERM and a terminal that is closed: once to end cleanly, twice to end now. In the calling process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """One of the signals came; `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """Hears the signals while it is entered.

    The first one ends what is done in `working`, by Interrupted. What must be done whole (closing the run, writing the
    report) is done outside of `working`, and the first signal is only noted there. At the second one the process ends
    at once: the kernel then ends the workers, and nothing is left behind.
    """

    def __init__(self) -> None:
        self._heard = 0
        self._is_working = False
        self._before: dict[signal.Signals, Any] = {}
        self._terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]

    def __enter__(self) -> Self:
        """Hear them, but for those that are ignored, as under nohup."""
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        """As it was; after a signal the next one still ends the process at once, whatever holds up its exit."""
        if not self._heard:
            for number, before in self._before.items():
                signal.signal(number, before)

    @contextmanager
    def working(self) -> Iterator[None]:
        """What a signal may end at any place."""
        self._is_working = True
        try:
            if self._heard:
                raise Interrupted(self._heard)
            yield
        finally:
            self._is_working = False

    def _hear(self, number: int, _: object) -> None:
        if self._heard:
            os._exit(128 + number)
        self._heard = number
        if number == signal.SIGHUP:
            self._leave_terminal()
        if self._is_working:
            raise Interrupted(number)

    def _leave_terminal(self) -> None:
        """It is gone: to write there fails, and the report must still be written."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in self._terminals:
            os.dup2(null, fd)
        os.close(null)
