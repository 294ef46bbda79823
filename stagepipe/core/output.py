"""What a user reads later: files, checked before the run and replaced whole; a small HTML table for notebooks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stagepipe.core.errors import UsageError


def check_output_file(option: str, path: Path) -> None:
    """Create the folder of an option's file. Raises UsageError if no file can be written there.

    Called before a run, which may take hours.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path}: this is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{option} {path}: its folder cannot be made: {reason}; name another file") from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {path}: no file can be written in {path.parent}; name a file in another folder")


@contextmanager
def replace_when_written(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield the path of a new, empty file, which takes the place of `path` after the block. An error removes it.

    So a reader never sees half of a file, and a full disk leaves the old one. `mode` is that of `open(2)`.
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


_CELL_STYLE: Final = "text-align: left; padding: 0.1em 1em 0.1em 0; border-bottom: 1px solid rgba(128, 128, 128, 0.3)"
"""Neither text nor background has a colour: the notebook's own are readable in its light and its dark theme."""


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
