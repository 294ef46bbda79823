"""Reads what workers print and log, and passes it on. In the caller's process, on a thread of its own.

Each worker has one pipe for stdout and stderr. It exists before the worker's interpreter starts, and until the worker
and all processes that it forked have ended. The thread reads at most 64 KiB from each pipe every 10 ms: a worker that
floods its output blocks on its own full pipe and slows down no other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from stagepipe.runtime.logs.line_reader import LineReader
from stagepipe.runtime.logs.records import WARNINGS_LOGGER, OutputCallback, OutputLine
from stagepipe.transport import WakeEvent

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
        os.set_blocking(read_fd, False)  # only this end: the worker's writes block
        self._readers_by_fd[read_fd] = LineReader(stage, worker)
        self._epoll.register(read_fd, select.EPOLLIN)
        try:
            yield write_fd
        finally:
            os.close(write_fd)

    def close(self) -> None:
        """Pass on what is left in the pipes, stop the thread and close all descriptors."""
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
        for fd in tuple(self._readers_by_fd):  # a child that outlives its worker may hold a pipe open: do not wait
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
        except Exception:  # noqa: BLE001 - of the caller's function, a logging handler, a closed terminal
            self._log_first_failure()

    def _log_first_failure(self) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        with contextlib.suppress(Exception):  # logging fails too where stderr is closed: nowhere to report it
            _log.warning(
                "`on_output` raised an error, so some output of the workers is lost; its later errors are not shown",
                exc_info=True,
            )

    def _is_first_occurrence(self, line: OutputLine) -> bool:
        """Whether to show the line. A warning that several workers give is shown once, and counted.

        Its message has the text, the category and the place.
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
    """Return the line that follows at the end of the run: how often a warning came again, in any worker."""
    text = (line.record.message.splitlines() or [""])[0]
    message = f"{count:,} more time{'s' * (count > 1)} in this run: {text}"
    return OutputLine(line.stage, line.worker, msgspec.structs.replace(line.record, logger="", message=message))
