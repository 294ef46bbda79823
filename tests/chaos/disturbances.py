"""Kills and stops workers of a pipeline at given moments, on threads beside the run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

from stagepipe import Pipeline


class Disturber:
    """Applies a case's disturbances to a pipeline, and counts them. A context manager: no worker stays stopped.

    A disturbance's `after` is its moment: "start", "first" (the first item), or a share of all items; `delay_s` later
    it happens. Crashes are not its business: their workers do that themselves.
    """

    def __init__(self, disturbances: list[dict[str, Any]], item_count: int) -> None:
        """`item_count`: how many items the whole case delivers."""
        self.counts: Counter[str] = Counter()
        self.killed_pids: set[int] = set()
        self.running: Pipeline | None = None
        self._end_event = threading.Event()
        self._threads: list[threading.Thread] = []
        self._delivered_count = 0
        self._pending: dict[int, list[dict[str, Any]]] = {}
        for disturbance in disturbances:
            if disturbance["kind"] != "crash":
                self._pending.setdefault(_find_trigger_item(disturbance["after"], item_count), []).append(disturbance)

    def __enter__(self) -> Self:
        self._start_due_disturbances()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_event.set()
        for thread in self._threads:
            thread.join()

    def count_item(self) -> None:
        """Count a delivered item, and start the disturbances that are due."""
        self._delivered_count += 1
        self._start_due_disturbances()

    def _start_due_disturbances(self) -> None:
        for disturbance in self._pending.pop(self._delivered_count, ()):
            thread = threading.Thread(target=self._disturb, args=(disturbance,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _disturb(self, disturbance: dict[str, Any]) -> None:
        if self._end_event.wait(disturbance["delay_s"]):
            return
        for pid in self._iter_pids(disturbance["process"]):
            with contextlib.suppress(ProcessLookupError):
                if disturbance["kind"] == "kill":
                    self.killed_pids.add(pid)
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
        pids = get_worker_pids(self.running)
        if process == "*" and pids:
            yield random.choice(list(pids.values()))
        elif process in pids:
            yield pids[process]


def _find_trigger_item(after: str | float, item_count: int) -> int:
    if isinstance(after, str):
        return {"start": 0, "first": 1}[after]
    return max(int(after * item_count), 1)


def get_worker_pids(running: Pipeline | None) -> dict[str, int]:
    """Return the pids of a pipeline's live workers by name."""
    run = None if running is None else running._run
    if run is None:
        return {}
    return {worker.name: worker.pid for worker in list(run._supervisor.workers.values()) if worker.poll() is None}
