"""The end of a command: errors -> text on stderr and an exit status; signals; streams that are closed or full.

Runs in the calling process. A shell may have closed stdout and stderr (`2>&-`), or they may be full (`>/dev/full`). The
first Ctrl-C, SIGTERM or closed terminal ends a run cleanly, the second one immediately.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import typer

from stagepipe.core import ConfigError, RunError, TargetError, UsageError


def open_standard_streams() -> None:
    """Open closed descriptors from 0 to 2. Otherwise a pipe of the run would get the number, and then the run's text.

    If stderr is closed, its text goes to stdout.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number, which is `fd`
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open until the exit, like stdout
    if sys.stderr is None:
        sys.stderr = sys.stdout


def print_to_stderr(text: object) -> None:
    """Print to stderr, ignoring write errors: the exit status still tells the result."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def explain_stdout_errors() -> Iterator[None]:
    """If stdout cannot be written, say so on stderr and exit with 1, or with the status of the current error.

    A closed pipe (`| head`) is left to typer, which exits silently.
    """
    error_under_way = sys.exc_info()[1]
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EPIPE or not _is_stdout_broken():
            raise
        _redirect_stdout_to_null()
        print_to_stderr(f"cannot write to stdout: {error.strerror}; redirect it to a disk with free space")
        if error_under_way is None:
            raise typer.Exit(1) from None


def _is_stdout_broken() -> bool:
    """Return whether another line fails too. The failed text may have left the buffer."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _redirect_stdout_to_null() -> None:
    """Prevent another error from Python's last flush of stdout at the exit."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, sys.stdout.fileno())
    os.close(null_fd)


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptedBySignal(KeyboardInterrupt):
    """A signal arrived; `signal_number` is its number."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class SignalHandler:
    """Handles signals inside its `with` block.

    The first signal raises InterruptedBySignal inside an `interruptible` block. Outside of it, the signal is only
    noted, because some work must finish: closing the run, writing the report. The second signal ends the process
    immediately; the kernel then ends the workers, and nothing is left behind.
    """

    def __init__(self) -> None:
        self._received_signal = 0
        self._is_interruptible = False
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._terminal_fds = [fd for fd in (0, 1, 2) if os.isatty(fd)]

    def __enter__(self) -> Self:
        """Install the handlers, except for ignored signals, as under nohup."""
        for signal_number in _SIGNALS:
            previous_handler = signal.getsignal(signal_number)
            if previous_handler is not signal.SIG_IGN:
                self._previous_handlers[signal_number] = previous_handler
                signal.signal(signal_number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers. After a signal they stay, so that the next one can end a process that hangs at exit."""
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
        """Redirect a lost terminal: writing to it would fail, and the report must still be written."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in self._terminal_fds:
            os.dup2(null, fd)
        os.close(null)


EXIT_RUN_FAILED: Final = 1
"""Exit status: the run failed."""

EXIT_USAGE_ERROR: Final = 2
"""Exit status: the config or the call is wrong."""

EXIT_INTERRUPTED: Final = 130
"""Exit status: interrupted, 128 + SIGINT as in shells. For another signal, it is 128 + the signal's number."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print a command's error and exit with its status. Also works as a decorator."""
    try:
        with explain_stdout_errors():
            yield
    except ConfigError as error:
        print_to_stderr("\n".join(str(problem) for problem in error.problems))
        count = len(error.problems)
        print_to_stderr(f"{count} problem{'s' if count != 1 else ''}")
        raise typer.Exit(EXIT_USAGE_ERROR) from None
    except (UsageError, TargetError) as error:
        print_to_stderr(error)
        raise typer.Exit(EXIT_USAGE_ERROR) from None
    except RunError as error:
        print_to_stderr(f"{error.message}\n\n{error.trace.rstrip()}" if error.trace else error.message)
        raise typer.Exit(EXIT_RUN_FAILED) from None
    except InterruptedBySignal as interrupt:
        raise typer.Exit(128 + interrupt.signal_number) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
