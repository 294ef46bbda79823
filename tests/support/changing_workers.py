"""Pipelines whose workers come and go: as a test asks for, or at random, with kills at the worst moments."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any, Self

from stagepipe import Pipeline
from stagepipe.engine import EngineRun
from stagepipe.plan import Plan, ProcessRole
from stagepipe.runtime import Supervisor
from stagepipe.runtime.supervisor.workers import WorkerProcess
from stagepipe.spec import WorkerRange
from stagepipe.testing import scaling_policy
from stagepipe.timing import ProcessCounter, ProcessState

_INTERVAL_S = (0.02, 0.2)
"""Between two requests."""
_MAX_KILL_WAIT_S = 0.05
"""After a request, until a worker starts or retires."""
_MAX_KILL_DELAY_S = 0.01
"""Longer, most have started or retired."""


class _NoPolicy:
    def decide(self, sample: object) -> None:
        """Leave the workers as they are."""


class ChangeablePipeline(Pipeline):
    """A pipeline whose stages start with the workers of the config, and have slots for `most_workers`.

    Nobody but the test changes their numbers.
    """

    def __init__(self, config: Any, *, most_workers: int = 4, **keys: Any) -> None:
        super().__init__(config, **keys)
        self._most_workers = most_workers

    def _plan_run(self) -> Plan:
        plan = super()._plan_run()
        bounds = WorkerRange(1, self._most_workers)
        processes = [
            replace(process, worker_bounds=bounds) if process.role is ProcessRole.STAGE else process
            for process in plan.processes
        ]
        return replace(plan, processes=tuple(processes))

    def _ensure_started(self) -> EngineRun:
        with scaling_policy(_NoPolicy()):
            return super()._ensure_started()

    @property
    def supervisor(self) -> Supervisor:
        """That of the run."""
        return self._run._supervisor  # type: ignore[union-attr]


class WorkerChanger:
    """Asks for random numbers of workers, every 20 to 200 ms, on a thread beside the run. A context manager.

    After some requests a worker of the same stage is killed: one that starts or retires, if there is one.
    """

    def __init__(self, supervisor: Supervisor, seed: int, max_kills: int = 0) -> None:
        self._supervisor = supervisor
        self._rnd = random.Random(f"workers {seed}")
        self._kills_left = max_kills
        self.killed_pids: set[int] = set()
        self.counts: Counter[str] = Counter()
        """`changes` that have happened, those that failed, and kills: of workers that start, that retire, in all."""
        slots = supervisor.resources.slots
        self._slot_counts = Counter(slot.worker_group for slot in slots if slot.process_plan.slot_count > 1)
        self._end_event = threading.Event()
        self._thread = threading.Thread(target=self._change_and_kill, name="worker-changer", daemon=True)

    def __enter__(self) -> Self:
        if self._slot_counts:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_event.set()
        if self._slot_counts:
            self._thread.join()
        changes = [change for change in self._supervisor.worker_changes if change.done_ns or change.failure]
        self.counts["failed changes"] = sum(bool(change.failure) for change in changes)
        self.counts["changes"] = len(changes) - self.counts["failed changes"]

    def _change_and_kill(self) -> None:
        while not self._end_event.wait(self._rnd.uniform(*_INTERVAL_S)):
            group = self._rnd.choice(list(self._slot_counts))
            self._supervisor.request_workers(group, self._rnd.randint(1, self._slot_counts[group]))
            if self._kills_left and self._rnd.random() < 0.5:
                self._kills_left -= 1
                self._kill_one(group)

    def _kill_one(self, group: int) -> None:
        deadline = time.monotonic() + _MAX_KILL_WAIT_S
        starting, retiring = self._find_changing(group)
        while not (starting or retiring) and time.monotonic() < deadline:
            time.sleep(0.001)
            starting, retiring = self._find_changing(group)
        time.sleep(self._rnd.uniform(0, _MAX_KILL_DELAY_S))
        others = [each for each in list(self._supervisor.workers.values()) if each.slot.worker_group == group]
        victim = self._rnd.choice([*starting, *retiring] or others)
        self.killed_pids.add(victim.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
        self.counts["kills"] += 1
        self.counts["kills at start"] += victim in starting
        self.counts["kills of the retiring"] += victim in retiring

    def _find_changing(self, group: int) -> tuple[list[WorkerProcess], list[WorkerProcess]]:
        """Return the workers of a stage that start, and those that retire."""
        workers = [each for each in list(self._supervisor.workers.values()) if each.slot.worker_group == group]
        regions = [self._supervisor.board.region(each.slot.process_index) for each in workers]
        return (
            [each for each in workers if not each.is_ready],
            [
                each
                for each, region in zip(workers, regions, strict=True)
                if region[ProcessCounter.PROCESS_STATE] == ProcessState.RETIRING
            ],
        )
