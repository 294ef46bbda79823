"""Kills and stops at their moments, by a thread beside the run that they are done to."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

from stagepipe import Pipeline


class Disturber:
    """Does what a case says to a pipeline, and counts it. A context manager: nobody stays stopped."""

    def __init__(self, disturbances: list[dict[str, Any]]) -> None:
        self.done: Counter[str] = Counter()
        self.running: Pipeline | None = None
        self.first = threading.Event()
        """Set when the first item is out."""
        self._over = threading.Event()
        self._started_at = time.monotonic()
        timed = [each for each in disturbances if each["kind"] != "crash"]
        self._threads = [threading.Thread(target=self._disturb, args=(each,), daemon=True) for each in timed]

    def __enter__(self) -> Self:
        self._started_at = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.first.set()
        for thread in self._threads:
            thread.join()

    def _disturb(self, what: dict[str, Any]) -> None:
        if what["behind"] == "first":
            self.first.wait()
        if self._over.wait(what["after_s"]):
            return
        for pid in self._pids(what["process"]):
            with contextlib.suppress(ProcessLookupError):
                if what["kind"] == "kill":
                    os.kill(pid, signal.SIGKILL)
                    self.done["kills"] += 1
                else:
                    self._stop(pid, what["for_s"])

    def _stop(self, pid: int, for_s: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.done["stops"] += 1
        self._over.wait(for_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _pids(self, process: str) -> Iterator[int]:
        for name, pid in pids_of(self.running).items():
            if name == process:
                yield pid


def pids_of(running: Pipeline | None) -> dict[str, int]:
    """A pipeline's workers, those that live now, by name."""
    run = None if running is None else running._run
    if run is None:
        return {}
    return {worker.name: worker.pid for worker in list(run._supervisor.workers.values()) if worker.poll() is None}
