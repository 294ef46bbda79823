"""What workers print and log comes out on the caller's side. In the caller's process, a thread of its own.

Each worker has one pipe for its stdout and stderr, from before its interpreter starts until it and all that it forked
have ended. The thread takes at most 64 KiB of each in a hundredth of a second: a worker that floods waits on its own
full pipe, and nobody else does.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from typing import Final

from stagepipe.runtime.line_reader import LineReader
from stagepipe.runtime.lines import WARNINGS, Line, Show
from stagepipe.transport import Bell

_READ_BYTES: Final = 1 << 16
"""pipe(7): what a pipe holds."""
_REST_S: Final = 0.01
_LOOK_S: Final = 0.25
_WARNINGS_KNOWN: Final = 1000
_END_S: Final = 2.0


class Output:
    """The reader of a run's workers. One descriptor for each of them, and two of its own."""

    def __init__(self, show: Show) -> None:
        """Lines go to `show`, on this one's thread."""
        self._show = show
        self._readers: dict[int, LineReader] = {}
        self._warned: set[tuple[str, str]] = set()
        self._bell = Bell()
        self._epoll = select.epoll()
        self._epoll.register(self._bell.fd, select.EPOLLIN)
        self._closing = False
        self._thread = threading.Thread(target=self._read, name="stagepipe-output", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def pipe(self, stage: str, worker: int) -> Iterator[int]:
        """The write end of a pipe for a worker, which inherits it in here."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)  # of this end alone: the worker's prints wait
        self._readers[read_fd] = LineReader(stage, worker)
        self._epoll.register(read_fd, select.EPOLLIN)
        try:
            yield write_fd
        finally:
            os.close(write_fd)

    def close(self) -> None:
        """Show the last words of workers that have ended, and give everything back."""
        self._closing = True
        self._bell.ring()
        self._thread.join(_END_S)
        if self._thread.is_alive():  # `show` hangs, on a terminal that was stopped: its descriptors stay
            return
        for fd in self._readers:
            os.close(fd)
        self._readers.clear()
        self._epoll.close()
        self._bell.close()

    # ------------------------------------------------------------------ the thread

    def _read(self) -> None:
        while not self._closing:
            waiting = any(reader.waiting for reader in tuple(self._readers.values()))
            ready = self._epoll.poll(_LOOK_S if waiting else None)
            self._tell([line for fd, _ in ready for line in self._heard(fd)])
            self._tell([line for reader in tuple(self._readers.values()) for line in reader.rest(time.monotonic())])
            time.sleep(_REST_S)
        for fd in tuple(self._readers):  # a child that lives on may hold a pipe open: its end is not waited for
            self._tell([*self._heard(fd), *(reader.end() if (reader := self._readers.get(fd)) else ())])

    def _heard(self, fd: int) -> list[Line]:
        reader = self._readers.get(fd)
        if reader is None:
            self._bell.hush()
            return []
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return []
        if data:
            return reader.feed(data, time.monotonic())
        del self._readers[fd]
        os.close(fd)  # epoll(7) forgets it
        return reader.end()

    def _tell(self, lines: list[Line]) -> None:
        new = [line for line in lines if self._is_news(line)]
        if new:
            with contextlib.suppress(Exception):  # a handler's own, a terminal that is gone: nobody is left to be told
                self._show(new)

    def _is_news(self, line: Line) -> bool:
        """Each worker of a stage gives the same warning: it is shown once."""
        if line.record.logger != WARNINGS:
            return True
        known = (line.stage, line.record.message)
        if known in self._warned:
            return False
        if len(self._warned) < _WARNINGS_KNOWN:
            self._warned.add(known)
        return True
