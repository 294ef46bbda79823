"""`--log-json`: everything on stderr as lines of JSON, for log collectors. In the calling process."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOBase
from typing import TYPE_CHECKING, Final, TextIO

from stagepipe.cli.errors import exit_on_error
from stagepipe.core import StagepipeError

if TYPE_CHECKING:
    from stagepipe.runtime import OutputLine

_LOGGER_NAME: Final = "stagepipe"


class JsonLogStream(TextIOBase):
    """Replaces `sys.stderr`: each printed text becomes one line of JSON, and so does each line of a worker."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pending_text = ""
        self.printed_level = logging.INFO
        """The level of texts that are printed from now on."""

    def write(self, text: str) -> int:
        """Buffer a text until it ends with a newline, and write it as one line of JSON even if it has several lines."""
        self._pending_text += text
        if self._pending_text.endswith("\n"):
            message = self._pending_text.strip("\n")
            self._pending_text = ""
            self._stream.write(_format_line(time.time(), self.printed_level, _make_origin(_LOGGER_NAME), message))
        return len(text)

    def flush(self) -> None:
        """Flush the stream. The start of an unfinished line stays buffered."""
        self._stream.flush()

    def write_worker_lines(self, lines: Sequence[OutputLine]) -> None:
        """Write lines that workers have printed or logged."""
        self._stream.write("".join(_format_worker_line(line) for line in lines))
        self._stream.flush()

    def write_record(self, record: logging.LogRecord, text: str) -> None:
        """Write a record that the calling process has logged."""
        self._stream.write(_format_line(record.created, record.levelno, _make_origin(record.name), text))


class _JsonLogHandler(logging.Handler):
    def __init__(self, stream: JsonLogStream) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        self._stream.write_record(record, self.format(record))


@contextmanager
def redirect_stderr_to_json() -> Iterator[JsonLogStream]:
    """Write all of stderr as JSON, including the error that ends the command."""
    original_stderr = sys.stderr
    json_stream = JsonLogStream(original_stderr)
    handler = _JsonLogHandler(json_stream)
    logging.getLogger().addHandler(handler)
    sys.stderr = json_stream
    try:
        with exit_on_error(), _raise_level_on_error(json_stream):
            yield json_stream
    finally:
        sys.stderr = original_stderr
        logging.getLogger().removeHandler(handler)


@contextmanager
def _raise_level_on_error(stream: JsonLogStream) -> Iterator[None]:
    try:
        yield
    except StagepipeError:
        stream.printed_level = logging.ERROR
        raise


LogOrigin = dict[str, str | int | None]
"""The fields of a log line that say where it comes from."""


def _make_origin(logger: str, stage: str | None = None, worker: int | None = None, item: str = "") -> LogOrigin:
    item_field = {"item": item} if item else {}
    return {"stage": stage, "worker": worker, **item_field, "logger": logger or None}


def _format_worker_line(line: OutputLine) -> str:
    record = line.record
    message = f"{record.message}\n{record.trace}" if record.trace else record.message
    return _format_line(
        record.time_s, record.level, _make_origin(record.logger, line.stage, line.worker, record.item), message
    )


def _format_line(time_s: float, level: int, origin: LogOrigin, message: str) -> str:
    timestamp = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
    fields = {"time": timestamp, "level": logging.getLevelName(level), **origin, "message": message}
    return json.dumps(fields, ensure_ascii=False) + "\n"
