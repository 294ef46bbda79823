"""Ctrl-C, SIGTERM and a closed terminal: the first ends cleanly, the second ends at once. In the calling process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedBySignal(KeyboardInterrupt):
    """A signal arrived; `signal_number` says which."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class SignalHandler:
    """Handle the signals while it is entered.

    The first signal raises InterruptedBySignal inside an `interruptible` block. Outside of it the signal is only noted,
    because some work must finish: closing the run, writing the report. The second signal ends the process at once; the
    kernel then ends the workers, and nothing is left behind.
    """

    def __init__(self) -> None:
        self._received_signal = 0
        self._is_interruptible = False
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._terminal_fds = [fd for fd in (0, 1, 2) if os.isatty(fd)]

    def __enter__(self) -> Self:
        """Install the handlers, except for signals that are ignored, as under nohup."""
        for signal_number in _SIGNALS:
            previous_handler = signal.getsignal(signal_number)
            if previous_handler is not signal.SIG_IGN:
                self._previous_handlers[signal_number] = previous_handler
                signal.signal(signal_number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers. After a signal they stay, so that the next one ends a process whose exit is held up."""
        if not self._received_signal:
            for signal_number, previous_handler in self._previous_handlers.items():
                signal.signal(signal_number, previous_handler)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Allow a signal to interrupt the block at any point."""
        self._is_interruptible = True
        try:
            if self._received_signal:
                raise InterruptedBySignal(self._received_signal)
            yield
        finally:
            self._is_interruptible = False

    def _on_signal(self, signal_number: int, _: object) -> None:
        if self._received_signal:
            os._exit(128 + signal_number)
        self._received_signal = signal_number
        if signal_number == signal.SIGHUP:
            self._redirect_terminal_to_null()
        if self._is_interruptible:
            raise InterruptedBySignal(signal_number)

    def _redirect_terminal_to_null(self) -> None:
        """The terminal is gone: writing to it would fail, and the report must still be written."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in self._terminal_fds:
            os.dup2(null, fd)
        os.close(null)
