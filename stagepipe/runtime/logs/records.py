"""The output of workers, printed or logged: its wire format and how the caller sees it. In every process.

One pipe per worker carries both, which keeps their order. Printed text travels unchanged. A `logging` record is a line
of JSON after the record separator of JSON text sequences (RFC 7464).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

RECORD_SEPARATOR: Final = "\x1e"
WARNINGS_LOGGER: Final = "py.warnings"
"""The logger to which `logging.captureWarnings` sends warnings."""


class OutputRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A `logging` record, or a printed line: then `logger` is empty.

    `time_s` is Unix time, `level` a level of `logging`, `item` the item that the worker was processing, and `trace` the
    exception and stack as text.
    """

    time_s: float
    level: int
    logger: str
    message: str
    item: str = ""
    trace: str = ""
    path: str = ""
    line_number: int = 0
    function: str = ""


encode_record = msgspec.json.Encoder().encode
decode_record = msgspec.json.Decoder(OutputRecord).decode


@dataclass(frozen=True)
class OutputLine:
    """A line or record that a worker printed or logged.

    >>> print(OutputLine("decode", 1, OutputRecord(time_s=0.0, level=30, logger="my_ops", message="no EXIF")))
    decode/1: WARNING my_ops: no EXIF
    """

    stage: str
    worker: int
    record: OutputRecord

    def __str__(self) -> str:
        """The text for people: each line of the message behind the worker's name."""
        record = self.record
        has_prefix = record.logger not in {"", WARNINGS_LOGGER}
        prefix = f"{logging.getLevelName(record.level)} {record.logger}: " if has_prefix else ""
        return self.prefix_lines(f"{prefix}{record.message}\n{record.trace}".rstrip("\n"))

    def prefix_lines(self, text: str) -> str:
        """`text` with the worker's name (`decode/1`) before each of its lines."""
        return "\n".join(f"{self.stage}/{self.worker}: {part}".rstrip() for part in text.split("\n"))

    def to_log_record(self) -> logging.LogRecord:
        """A record for the caller's own `logging`, with the extra attributes `stage`, `worker` and `item`."""
        record = self.record
        return logging.makeLogRecord(
            {
                "name": record.logger,
                "levelno": record.level,
                "levelname": logging.getLevelName(record.level),
                "msg": self.prefix_lines(record.message),
                "created": record.time_s,
                "msecs": record.time_s % 1 * 1000,
                "pathname": record.path,
                "filename": record.path.rpartition("/")[2],
                "lineno": record.line_number,
                "funcName": record.function,
                "exc_text": record.trace or None,
                "processName": f"{self.stage}/{self.worker}",
                "stage": self.stage,
                "worker": self.worker,
                "item": record.item,
            }
        )


OutputCallback = Callable[[Sequence[OutputLine]], None]
"""Receives lines as they arrive, several at a time, on the collector's thread."""


def forward_output(lines: Sequence[OutputLine]) -> None:
    """Pass records to the caller's `logging` if it has handlers, and write everything else to `sys.stderr`.

    It never writes to stdout, which belongs to the caller and may be a file of items.
    """
    texts: list[str] = []
    for line in lines:
        logger = logging.getLogger(line.record.logger or None)
        if not line.record.logger or not logger.hasHandlers():
            texts.append(f"{line}\n")
        elif logger.isEnabledFor(line.record.level):
            _write_to_stderr(texts)
            logger.handle(line.to_log_record())
    _write_to_stderr(texts)


def _write_to_stderr(texts: list[str]) -> None:
    """Write all texts in one call, so that lines of several processes and threads do not mix; then clear the list."""
    if texts and sys.stderr is not None:
        sys.stderr.write("".join(texts))
        sys.stderr.flush()
    texts.clear()
