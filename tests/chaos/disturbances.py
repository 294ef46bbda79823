"""Kills and stops workers of a pipeline at given moments, on threads beside the run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

from stagepipe import Pipeline


class Disturber:
    """Applies a case's disturbances to a pipeline, and counts them. A context manager: no worker stays stopped."""

    def __init__(self, disturbances: list[dict[str, Any]]) -> None:
        self.counts: Counter[str] = Counter()
        self.running: Pipeline | None = None
        self.first_item_event = threading.Event()
        """Set when the first item is delivered."""
        self._end_event = threading.Event()
        timed = [disturbance for disturbance in disturbances if disturbance["kind"] != "crash"]
        self._threads = [
            threading.Thread(target=self._disturb, args=(disturbance,), daemon=True) for disturbance in timed
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_event.set()
        self.first_item_event.set()
        for thread in self._threads:
            thread.join()

    def _disturb(self, disturbance: dict[str, Any]) -> None:
        if disturbance["after"] == "first":
            self.first_item_event.wait()
        if self._end_event.wait(disturbance["delay_s"]):
            return
        for pid in self._iter_pids(disturbance["process"]):
            with contextlib.suppress(ProcessLookupError):
                if disturbance["kind"] == "kill":
                    os.kill(pid, signal.SIGKILL)
                    self.counts["kills"] += 1
                else:
                    self._stop(pid, disturbance["for_s"])

    def _stop(self, pid: int, for_s: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.counts["stops"] += 1
        self._end_event.wait(for_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _iter_pids(self, process: str) -> Iterator[int]:
        for name, pid in get_worker_pids(self.running).items():
            if name == process:
                yield pid


def get_worker_pids(running: Pipeline | None) -> dict[str, int]:
    """Return the pids of a pipeline's live workers by name."""
    run = None if running is None else running._run
    if run is None:
        return {}
    return {worker.name: worker.pid for worker in list(run._supervisor.workers.values()) if worker.poll() is None}
