"""`--log-json`: all that goes to stderr as lines of JSON, for the machines that read logs. In the calling process."""

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

from stagepipe.cli.problems import reported
from stagepipe.core import StagepipeError

if TYPE_CHECKING:
    from stagepipe.runtime.lines import Line

_OURS: Final = "stagepipe"


class JsonLines(TextIOBase):
    """Stands in for `sys.stderr`: each text that is printed becomes one line of JSON, and so do workers' lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self.level = logging.INFO
        """Of what is printed from now on."""

    def write(self, text: str) -> int:
        """Take text in; it is told at its end, however many lines it has."""
        self._text += text
        if self._text.endswith("\n"):
            told, self._text = self._text.strip("\n"), ""
            self._stream.write(_json(time.time(), self.level, _whose(_OURS), told))
        return len(text)

    def flush(self) -> None:
        """Nothing is kept but the beginning of a line."""
        self._stream.flush()

    def show(self, lines: Sequence[Line]) -> None:
        """What workers have printed and logged."""
        self._stream.write("".join(_worker_json(line) for line in lines))
        self._stream.flush()

    def log(self, record: logging.LogRecord, text: str) -> None:
        """What the calling process has logged."""
        self._stream.write(_json(record.created, record.levelno, _whose(record.name), text))


class _Handler(logging.Handler):
    def __init__(self, lines: JsonLines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.log(record, self.format(record))


@contextmanager
def json_stderr() -> Iterator[JsonLines]:
    """All of stderr as JSON, also the error that the command ends with."""
    under = sys.stderr
    lines = JsonLines(under)
    handler = _Handler(lines)
    logging.getLogger().addHandler(handler)
    sys.stderr = lines
    try:
        with reported(), _errors(lines):
            yield lines
    finally:
        sys.stderr = under
        logging.getLogger().removeHandler(handler)


@contextmanager
def _errors(lines: JsonLines) -> Iterator[None]:
    try:
        yield
    except StagepipeError:
        lines.level = logging.ERROR
        raise


Whose = dict[str, str | int | None]


def _whose(logger: str, stage: str | None = None, worker: int | None = None, item: str = "") -> Whose:
    named = {"item": item} if item else {}
    return {"stage": stage, "worker": worker, **named, "logger": logger or None}


def _worker_json(line: Line) -> str:
    record = line.record
    message = f"{record.message}\n{record.trace}" if record.trace else record.message
    return _json(record.time_s, record.level, _whose(record.logger, line.stage, line.worker, record.item), message)


def _json(time_s: float, level: int, whose: Whose, message: str) -> str:
    moment = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
    fields = {"time": moment, "level": logging.getLevelName(level), **whose, "message": message}
    return json.dumps(fields, ensure_ascii=False) + "\n"
