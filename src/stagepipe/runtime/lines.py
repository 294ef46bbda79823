"""Lines that workers say, printed or logged: how they travel, and how they are shown. In every process.

One pipe a worker carries both, so that their order is kept. What is printed comes as it is; a record of `logging` is a
line of JSON behind the byte that JSON text sequences begin with (RFC 7464).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

RECORD_MARK: Final = "\x1e"
WARNINGS: Final = "py.warnings"
"""The logger that `logging.captureWarnings` gives warnings to."""


class Record(msgspec.Struct, frozen=True):
    """A record of `logging`; of a line that was printed, `logger` is empty. `trace` is its exception, as text."""

    time_s: float
    level: int
    logger: str
    message: str
    item: str = ""
    trace: str = ""
    path: str = ""
    line: int = 0
    function: str = ""


encode_record = msgspec.json.Encoder().encode
decode_record = msgspec.json.Decoder(Record).decode


@dataclass(frozen=True)
class Line:
    """What a worker of a stage said.

    >>> print(Line("decode", 1, Record(0.0, 30, "my_ops", "no EXIF")))
    decode/1: WARNING my_ops: no EXIF
    """

    stage: str
    worker: int
    record: Record

    def __str__(self) -> str:
        """As people read it: the worker's name before each line of the message."""
        record = self.record
        plain = record.logger in {"", WARNINGS}
        head = "" if plain else f"{logging.getLevelName(record.level)} {record.logger}: "
        return self.named(f"{head}{record.message}\n{record.trace}".rstrip("\n"))

    def named(self, text: str) -> str:
        """`text` with the worker's name before each of its lines."""
        return "\n".join(f"{self.stage}/{self.worker}: {part}".rstrip() for part in text.split("\n"))

    def log_record(self) -> logging.LogRecord:
        """For the caller's own `logging`: it has `stage`, `worker` and `item` too."""
        record = self.record
        return logging.makeLogRecord(
            {
                "name": record.logger,
                "levelno": record.level,
                "levelname": logging.getLevelName(record.level),
                "msg": self.named(record.message),
                "created": record.time_s,
                "msecs": record.time_s % 1 * 1000,
                "pathname": record.path,
                "filename": record.path.rpartition("/")[2],
                "lineno": record.line,
                "funcName": record.function,
                "exc_text": record.trace or None,
                "processName": f"{self.stage}/{self.worker}",
                "stage": self.stage,
                "worker": self.worker,
                "item": record.item,
            }
        )


Show = Callable[[Sequence[Line]], None]
"""Takes lines as they come, some at a time, on a thread of its own."""


def show_lines(lines: Sequence[Line]) -> None:
    """Records go where the caller's `logging` sends them, if it is set up; everything else to `sys.stderr`.

    Never to stdout: that is for what the caller writes, and may be a file of items.
    """
    plain: list[str] = []
    for line in lines:
        logger = logging.getLogger(line.record.logger or None)
        if not line.record.logger or not logger.hasHandlers():
            plain.append(f"{line}\n")
        elif logger.isEnabledFor(line.record.level):
            _write(plain)
            logger.handle(line.log_record())
    _write(plain)


def _write(plain: list[str]) -> None:
    """At one go, so that lines of several processes and threads stay whole."""
    if plain and sys.stderr is not None:
        sys.stderr.write("".join(plain))
        sys.stderr.flush()
    plain.clear()
