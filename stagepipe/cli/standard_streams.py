"""stdout and stderr that a shell has closed (`2>&-`) or that are full (`>/dev/full`). In the calling process."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import typer


def open_standard_streams() -> None:
    """Open what is closed of the descriptors 0 to 2, or a pipe of the run would get the number and the run's texts.

    What is meant for a closed stderr goes to stdout.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number, which is `fd`
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open until the exit, as stdout is
    if sys.stderr is None:
        sys.stderr = sys.stdout


def print_to_stderr(text: object) -> None:
    """Print to stderr, if it can be written: the exit status says the rest."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def explain_stdout_errors() -> Iterator[None]:
    """Where stdout cannot be written, say so on stderr and exit with 1, or with the status of the error under way.

    A closed pipe (`| head`) is left to typer, which exits without a word.
    """
    error_under_way = sys.exc_info()[1]
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EPIPE or not _is_stdout_broken():
            raise
        _redirect_stdout_to_null()
        print_to_stderr(f"cannot write to stdout: {error.strerror}; redirect it to where there is room")
        if error_under_way is None:
            raise typer.Exit(1) from None


def _is_stdout_broken() -> bool:
    """Whether a line more cannot be written either. What failed before may have left the buffer."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _redirect_stdout_to_null() -> None:
    """Python flushes stdout once more at the exit, and would fail again."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, sys.stdout.fileno())
    os.close(null_fd)
