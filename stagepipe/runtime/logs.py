"""Carries output, log records and warnings from the workers to the caller.

Each worker redirects its stdout, stderr, `logging` and `warnings` to a pipe. In the caller's process, a thread reads
the pipes of all workers, turns the bytes into lines and limits their rate.

One pipe per worker carries stdout, stderr and records, which keeps their order. Printed text travels unchanged. A
`logging` record is a line of JSON after the record separator of JSON text sequences (RFC 7464).

The pipe exists from before the start of the worker's interpreter until the worker and all processes that it forked have
ended. The thread reads at most 64 KiB from each pipe every 10 ms: a worker that floods its output blocks on its own
full pipe and slows down no other worker.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import functools
import io
import logging
import os
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from stagepipe.core import find_context

RECORD_SEPARATOR: Final = "\x1e"
WARNINGS_LOGGER: Final = "py.warnings"
"""The logger to which `logging.captureWarnings` sends warnings."""


class OutputRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A `logging` record, or a printed line if `logger` is empty.

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
        """Return the text for people: each line of the message after the worker's name."""
        record = self.record
        has_prefix = record.logger not in {"", WARNINGS_LOGGER}
        prefix = f"{logging.getLevelName(record.level)} {record.logger}: " if has_prefix else ""
        return self.prefix_lines(f"{prefix}{record.message}\n{record.trace}".rstrip("\n"))

    def prefix_lines(self, text: str) -> str:
        """Return `text` with the worker's name (`decode/1`) before each line."""
        return "\n".join(f"{self.stage}/{self.worker}: {part}".rstrip() for part in text.split("\n"))

    def to_log_record(self) -> logging.LogRecord:
        """Return a record for the caller's own `logging`, with the extra attributes `stage`, `worker` and `item`."""
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

    It never writes to stdout, which belongs to the caller and may be redirected to a file.
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
    """Write all texts in one call, so that lines of different processes and threads do not mix. Then clear the list."""
    if texts and sys.stderr is not None:
        sys.stderr.write("".join(texts))
        sys.stderr.flush()
    texts.clear()


_STDERR_FD: Final = 2
_MAX_MESSAGE_CHARS: Final = 16_384
"""Limits a message or a trace. Both together, with their JSON escapes, fit the longest line that is read."""
_LINE_BUFFERED: Final = 1  # _IOLBF, stdio.h


def redirect_output() -> None:
    """Make Python's and C's output line-buffered, and send `logging` records and warnings to the pipe."""
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
    """Apply `level`, then call `logging.basicConfig`, which does nothing while the root logger has a handler."""
    if options.get("level") is not None:
        logging.getLogger().setLevel(options["level"])
    original(**options)


class PipeLogHandler(logging.Handler):
    """Writes `logging` records to the pipe, in order with the printed lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record. As in every `logging` handler, an error goes to stderr and is not raised."""
        try:
            line = encode_record(_make_output_record(record, self.formatter or logging.Formatter()))
            os.write(_STDERR_FD, RECORD_SEPARATOR.encode() + line + b"\n")
        except Exception:  # noqa: BLE001 - formatting may raise anything: it calls `str` on the user's arguments
            self.handleError(record)


def _make_output_record(record: logging.LogRecord, formatter: logging.Formatter) -> OutputRecord:
    from stagepipe.runtime.protocol import format_key  # needs NumPy, which a caller's `import stagepipe` does not load

    trace = record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")
    stack = record.stack_info or ""
    context = find_context()
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


_MAX_LINES_PER_S: Final = 1000
"""More lines than anyone reads. Showing this many takes a few percent of a CPU core."""
_PARTIAL_LINE_TIMEOUT_S: Final = 0.5
"""A line that has not ended by then is shown unfinished: a prompt, or a dot for each step."""
_CHARS_PER_COUNTED_LINE: Final = 1000
"""A longer line counts as several lines."""
_MAX_LINE_CHARS: Final = 1 << 18
"""A longer line is shown in pieces, so that an endless line does not fill memory."""
_MAX_FINAL_LINES: Final = 10
_MAX_FINAL_CHARS: Final = 4096


class LineReader:
    """Parses the output of a worker.

    If a line is overwritten with carriage returns (a progress bar), the last state is shown, as in a terminal. Lines
    beyond 1,000 a second are dropped, and their number is shown instead. If the worker then ends, the last dropped
    lines are shown too, because they may be its traceback.
    """

    def __init__(self, stage: str, worker: int) -> None:
        self._stage = stage
        self._worker = worker
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._partial_line = ""
        self._last_read_at_s = -_PARTIAL_LINE_TIMEOUT_S
        self._rate_window_start_s = -_PARTIAL_LINE_TIMEOUT_S
        self._shown_line_count = 0
        self._dropped_line_count = 0
        self._dropped_tail = ""

    @property
    def has_pending(self) -> bool:
        """Whether `flush_overdue` will return something later."""
        return bool(self._partial_line or self._dropped_line_count)

    def feed(self, data: bytes, now_s: float) -> list[OutputLine]:
        """Return the lines that `data` completes. `now_s` is the time of a monotonic clock."""
        lines = self._advance_rate_window(now_s)
        self._last_read_at_s = now_s
        text = self._partial_line + self._decode(data)
        if len(text) - text.rfind("\n") > _MAX_LINE_CHARS:
            text += "\n"
        *complete_lines, remainder = text.split("\n", max(_MAX_LINES_PER_S - self._shown_line_count, 0))
        for text in complete_lines:
            self._shown_line_count += 1 + len(text) // _CHARS_PER_COUNTED_LINE
            lines += self._parse_lines(text)
        dropped_text, newline, self._partial_line = remainder.rpartition("\n")
        if newline:
            self._dropped_line_count += dropped_text.count("\n") + 1
            self._dropped_tail = f"{self._dropped_tail}{dropped_text[-_MAX_FINAL_CHARS:]}\n"[-_MAX_FINAL_CHARS:]
        self._partial_line = _remove_overwritten(self._partial_line)
        return lines

    def flush_overdue(self, now_s: float) -> list[OutputLine]:
        """Return the output that is overdue at `now_s`: an unfinished line, the number of dropped lines."""
        lines = self._advance_rate_window(now_s)
        return (
            [*lines, *self._flush_partial_line()]
            if self._partial_line and now_s - self._last_read_at_s > _PARTIAL_LINE_TIMEOUT_S
            else lines
        )

    def finish(self) -> list[OutputLine]:
        """Return all remaining output. Call it when the worker has ended."""
        final_texts = self._dropped_tail.split("\n")[-_MAX_FINAL_LINES - 1 : -1]
        self._dropped_line_count -= len(final_texts)
        self._partial_line += self._decode(b"", True)  # noqa: FBT003 - the decoder's `final` has no name
        return [
            *self._report_dropped_lines(),
            *(line for text in final_texts for line in self._parse_lines(text)),
            *self._flush_partial_line(),
        ]

    def _advance_rate_window(self, now_s: float) -> list[OutputLine]:
        """Begin a new rate window if a second has passed. Returns a report of the lines that the last one dropped."""
        if now_s - self._rate_window_start_s < 1:
            return []
        self._rate_window_start_s = now_s
        self._shown_line_count = 0
        return self._report_dropped_lines()

    def _report_dropped_lines(self) -> list[OutputLine]:
        count = self._dropped_line_count
        self._dropped_line_count = 0
        self._dropped_tail = ""
        return [self._make_line(f"{count:,} line{'s' * (count > 1)} not shown", logging.WARNING)] if count > 0 else []

    def _flush_partial_line(self) -> list[OutputLine]:
        text = self._partial_line
        self._partial_line = ""
        return self._parse_lines(text) if text else []

    def _parse_lines(self, text: str) -> list[OutputLine]:
        """Parse a printed line or a record. A record logged in the middle of a line comes after the line's start."""
        printed, separator, record = text.partition(RECORD_SEPARATOR)
        try:
            records = [OutputLine(self._stage, self._worker, decode_record(record))] if separator else []
        except msgspec.DecodeError:
            return [self._make_line(text.replace(RECORD_SEPARATOR, ""))]
        return records if separator and not printed else [self._make_line(printed), *records]

    def _make_line(self, text: str, level: int = logging.INFO) -> OutputLine:
        message = text.rstrip("\r").rpartition("\r")[2]
        return OutputLine(
            self._stage, self._worker, OutputRecord(time_s=time.time(), level=level, logger="", message=message)
        )


def _remove_overwritten(text: str) -> str:
    r"""Remove the text that a terminal would have overwritten after a carriage return.

    >>> _remove_overwritten("10 %\r20 %")
    '\r20 %'
    """
    start = text.rstrip("\r").rfind("\r")
    return text[max(start, 0) :]


_READ_CHUNK_BYTES: Final = 1 << 16
"""The default capacity of a pipe, pipe(7)."""
_READ_INTERVAL_S: Final = 0.01
_PARTIAL_LINE_POLL_S: Final = 0.25
_MAX_REMEMBERED_WARNINGS: Final = 1000
_THREAD_JOIN_TIMEOUT_S: Final = 2.0
_log = logging.getLogger("stagepipe")


class OutputCollector:
    """Reads the output of a run's workers. Owns a descriptor for each worker, and two more."""

    def __init__(self, on_output: OutputCallback) -> None:
        """Start the thread, which passes lines to `on_output`."""
        from stagepipe.transport import WakeEvent  # needs NumPy, too

        self._on_output = on_output
        self._readers_by_fd: dict[int, LineReader] = {}
        self._shown_warnings: dict[str, OutputLine] = {}
        self._repeats: Counter[str] = Counter()
        self._wake_event = WakeEvent()
        self._epoll = select.epoll()
        self._epoll.register(self._wake_event.fd, select.EPOLLIN)
        self._is_closing = False
        self._has_failed = False
        self._thread = threading.Thread(target=self._read_until_closed, name="stagepipe-output", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def open_pipe(self, stage: str, worker: int) -> Iterator[int]:
        """Open a pipe for a worker. Yields its write end, which the worker must inherit within the `with` block."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)  # only this end; the worker's writes block
        self._readers_by_fd[read_fd] = LineReader(stage, worker)
        self._epoll.register(read_fd, select.EPOLLIN)
        try:
            yield write_fd
        finally:
            os.close(write_fd)

    def close(self) -> None:
        """Pass on the rest of the output, stop the thread and close all descriptors."""
        self._is_closing = True
        self._wake_event.set()
        self._thread.join(_THREAD_JOIN_TIMEOUT_S)
        if self._thread.is_alive():  # `on_output` hangs, as on a stopped terminal: leave its descriptors open
            return
        for fd in self._readers_by_fd:
            os.close(fd)
        self._readers_by_fd.clear()
        self._epoll.close()
        self._wake_event.close()

    # ------------------------------------------------------------------ the thread

    def _read_until_closed(self) -> None:
        while not self._is_closing:
            has_pending = any(reader.has_pending for reader in tuple(self._readers_by_fd.values()))
            ready = self._epoll.poll(_PARTIAL_LINE_POLL_S if has_pending else None)
            self._deliver([line for fd, _ in ready for line in self._read_lines(fd)])
            self._deliver(
                [
                    line
                    for reader in tuple(self._readers_by_fd.values())
                    for line in reader.flush_overdue(time.monotonic())
                ]
            )
            time.sleep(_READ_INTERVAL_S)
        for fd in tuple(self._readers_by_fd):  # do not wait: a child that outlives its worker may hold a pipe open
            self._deliver(
                [*self._read_lines(fd), *(reader.finish() if (reader := self._readers_by_fd.get(fd)) else ())]
            )
        self._deliver([_count_repeats(self._shown_warnings[text], count) for text, count in self._repeats.items()])

    def _read_lines(self, fd: int) -> list[OutputLine]:
        reader = self._readers_by_fd.get(fd)
        if reader is None:
            self._wake_event.clear()
            return []
        try:
            data = os.read(fd, _READ_CHUNK_BYTES)
        except BlockingIOError:
            return []
        if data:
            return reader.feed(data, time.monotonic())
        del self._readers_by_fd[fd]
        os.close(fd)  # epoll(7) forgets it
        return reader.finish()

    def _deliver(self, lines: list[OutputLine]) -> None:
        new_lines = [line for line in lines if self._is_first_occurrence(line)]
        if not new_lines:
            return
        try:
            self._on_output(new_lines)
        except Exception:  # noqa: BLE001 - raised by the caller's function, a logging handler or a closed terminal
            self._log_first_failure()

    def _log_first_failure(self) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        with contextlib.suppress(Exception):  # logging also fails if stderr is closed
            _log.warning(
                "`on_output` raised an error, so some output of the workers is lost; its later errors are not shown",
                exc_info=True,
            )

    def _is_first_occurrence(self, line: OutputLine) -> bool:
        """Whether to show the line. A warning from several workers is shown once, and its repeats are counted.

        Warnings are equal if text, category and place are.
        """
        if line.record.logger != WARNINGS_LOGGER:
            return True
        warning = line.record.message
        if warning in self._shown_warnings:
            self._repeats[warning] += 1
            return False
        if len(self._shown_warnings) < _MAX_REMEMBERED_WARNINGS:
            self._shown_warnings[warning] = line
        return True


def _count_repeats(line: OutputLine, count: int) -> OutputLine:
    """Return the line for the end of the run: the number of repeats of a warning, in any worker."""
    text = (line.record.message.splitlines() or [""])[0]
    message = f"{count:,} more time{'s' * (count > 1)} in this run: {text}"
    return OutputLine(line.stage, line.worker, msgspec.structs.replace(line.record, logger="", message=message))
