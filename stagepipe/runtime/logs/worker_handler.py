"""Redirects a worker's stdout, stderr, `logging` and `warnings` to the pipe that the collector reads. In a worker."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import logging
import os
import sys
from typing import Any, Final

from stagepipe.core import stage_locals
from stagepipe.runtime.logs.records import RECORD_SEPARATOR, OutputRecord, encode_record
from stagepipe.runtime.protocol import format_key

_STDERR_FD: Final = 2
_MAX_MESSAGE_CHARS: Final = 16_384
"""Characters of a message or a trace. Both together, with their JSON escapes, fit the longest line that is read."""
_LINE_BUFFERED: Final = 1  # _IOLBF, stdio.h


def redirect_output() -> None:
    """Make output line-buffered, of Python and of C's stdout, and send `logging` records and warnings to the pipe."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    with contextlib.suppress(OSError, ValueError):
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, 0)
    logging.getLogger().addHandler(PipeLogHandler())
    logging.basicConfig = functools.partial(_basic_config_with_level, logging.basicConfig)
    logging.captureWarnings(capture=True)


def _basic_config_with_level(original: Any, **options: Any) -> None:
    """`logging.basicConfig`, which does nothing while the root logger has a handler, but with its `level` applied."""
    if options.get("level") is not None:
        logging.getLogger().setLevel(options["level"])
    original(**options)


class PipeLogHandler(logging.Handler):
    """Writes `logging` records to the pipe, in order with the printed lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record. As with every `logging` handler, an error goes to stderr and is not raised."""
        try:
            line = encode_record(_make_output_record(record, self.formatter or logging.Formatter()))
            os.write(_STDERR_FD, RECORD_SEPARATOR.encode() + line + b"\n")
        except Exception:  # noqa: BLE001 - formatting may raise anything: it calls `str` on the user's arguments
            self.handleError(record)


def _make_output_record(record: logging.LogRecord, formatter: logging.Formatter) -> OutputRecord:
    trace = record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")
    stack = record.stack_info or ""
    context = stage_locals.context
    return OutputRecord(
        time_s=record.created,
        level=record.levelno,
        logger=record.name,
        message=_escape_surrogates(record.getMessage())[:_MAX_MESSAGE_CHARS],
        item="" if context is None else format_key(context.item),
        trace=_escape_surrogates("\n".join(filter(None, (trace, stack))))[-_MAX_MESSAGE_CHARS:],
        path=record.pathname,
        line_number=record.lineno,
        function=record.funcName or "",
    )


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, which file names may contain and UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode().rstrip("\n")
