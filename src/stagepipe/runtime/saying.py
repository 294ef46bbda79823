"""A worker's stdout, stderr, `logging` and `warnings`, for the pipe that the supervisor reads. In a worker."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import logging
import os
import sys
from typing import Any, Final

from stagepipe.core import current
from stagepipe.runtime.lines import RECORD_MARK, Record, encode_record
from stagepipe.runtime.stage import key_text

_STDERR_FD: Final = 2
_LONGEST: Final = 16_384
"""Characters of a message or of a trace: together with what JSON adds they fit the longest line that is read."""
_LINE_BUFFERED: Final = 1  # _IOLBF, stdio.h


def speak_in_lines() -> None:
    """From now on lines leave this process as they are ended: Python's, native code's, and records of `logging`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    with contextlib.suppress(OSError, ValueError):
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, 0)
    logging.getLogger().addHandler(_Teller())
    logging.basicConfig = functools.partial(_basic_config, logging.basicConfig)
    logging.captureWarnings(True)  # noqa: FBT003 - it has no keyword


def _basic_config(original: Any, **wishes: Any) -> None:
    """As ever, it changes nothing where there is a handler; but the level that a stage wants is heard."""
    if wishes.get("level") is not None:
        logging.getLogger().setLevel(wishes["level"])
    original(**wishes)


class _Teller(logging.Handler):
    """Writes records to the pipe, where they keep their place among the lines that are printed."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; as in every handler of `logging`, its failure is told on stderr and not raised."""
        try:
            line = encode_record(_record(record, self.formatter or logging.Formatter()))
            os.write(_STDERR_FD, RECORD_MARK.encode() + line + b"\n")
        except Exception:  # noqa: BLE001 - what the message's own arguments raise when they are formatted, too
            self.handleError(record)


def _record(record: logging.LogRecord, formatter: logging.Formatter) -> Record:
    trace = record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")
    stack = record.stack_info or ""
    context = current.context
    return Record(
        time_s=record.created,
        level=record.levelno,
        logger=record.name,
        message=_plain(record.getMessage())[:_LONGEST],
        item="" if context is None else key_text(context.item),
        trace=_plain("\n".join(filter(None, (trace, stack))))[-_LONGEST:],
        path=record.pathname,
        line=record.lineno,
        function=record.funcName or "",
    )


def _plain(text: str) -> str:
    """Without lone surrogates, which are no UTF-8: file names have them."""
    return text.encode(errors="backslashreplace").decode().rstrip("\n")
