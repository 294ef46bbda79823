"""Output files: checked before a run, replaced atomically, kept in the cache folder. Also a table for notebooks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stagepipe.core.errors import UsageError
from stagepipe.core.package import get_cache_dir


def check_output_file(option: str, path: Path) -> None:
    """Create the folder of an option's file. Raises UsageError if no file can be written there.

    Call it before a run, which may take hours.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path}: this is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{option} {path}: its folder cannot be created: {reason}; name another file") from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {path}: no file can be written in {path.parent}; name a file in another folder")


@contextmanager
def replace_when_written(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield the path of a new, empty file that replaces `path` after the block. An error removes the new file.

    A reader therefore never sees half a file, and a full disk leaves the old one. `mode` is that of `open(2)`.
    """
    unfinished = path.with_name(f".stagepipe-{os.getpid()}-{os.urandom(6).hex()}.tmp")
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    try:
        yield unfinished
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


_MAX_UNUSED_S: Final = 30 * 24 * 3600.0


class KeptFiles:
    """Files in a folder of the user's cache folder: made once, then used by all processes and later runs.

    The cache folder itself holds the cost curves of the machine, `costs` the measured costs of configs, and `sources`
    the indexes of records and decompressed files. Writing a file removes the folder's files that were unused for 30
    days.
    """

    def __init__(self, folder: str = "") -> None:
        """Create no folder before there is a file to keep."""
        self._folder = folder

    def get_path(self, name: str) -> Path:
        """Return the path of a file, which need not exist. This counts as a use: it renews the file's time."""
        path = self._locate(name)
        with contextlib.suppress(OSError):
            os.utime(path)
        return path

    def _locate(self, name: str) -> Path:
        return get_cache_dir() / self._folder / name

    def write(self, name: str, write: Callable[[Path], object], *, mode: int = 0o600) -> None:
        """Write a file with `write` and move it into place when it is complete. Raises OSError if it cannot be kept."""
        path = self._locate(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_unused(path.parent)
        with replace_when_written(path, mode=mode) as unfinished:
            write(unfinished)

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold the lock of a file, so that one process makes it while the others wait. Without locks, each makes it."""
        path = self._locate(f"{name}.lock")
        with contextlib.ExitStack() as stack:
            # OSError: the folder cannot be written, or a network file system has no locks.
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield


def _remove_unused(folder: Path) -> None:
    oldest_s = time.time() - _MAX_UNUSED_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # a folder, or another process has removed it
            if path.stat().st_mtime < oldest_s:
                path.unlink()


_CELL_STYLE: Final = "text-align: left; padding: 0.1em 1em 0.1em 0; border-bottom: 1px solid rgba(128, 128, 128, 0.3)"
"""Sets no colour for text or background, so that the table is readable in light and dark themes."""


def make_html_table(
    title: str, heading: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """Return a table with a title above it and notes below it. All text is escaped.

    >>> "&lt;lambda&gt;" in make_html_table("edges", ["stage"], [["<lambda>"]])
    True
    """
    from html import escape  # only here: every process imports this module

    lines = [_make_row("th", map(escape, heading)), *(_make_row("td", map(escape, row)) for row in rows)]
    table = f'<table style="border-collapse: collapse">{"".join(lines)}</table>'
    return f"<div><b>{escape(title)}</b>{table}{''.join(f'<div>{escape(note)}</div>' for note in notes)}</div>"


def _make_row(tag: str, escaped_cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL_STYLE}">{cell}</{tag}>' for cell in escaped_cells) + "</tr>"
