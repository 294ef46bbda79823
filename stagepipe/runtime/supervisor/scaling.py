"""Adds and removes workers of a stage during the run.

Everything runs on the supervisor's thread, except `request` and `count`. A request is a number of workers for a group.
Each group then makes one change at a time. A new worker joins the readers of its hop when it has entered the current
seek. A retiring worker takes no more items, finishes its current ones, waits until no process uses its memory, and
exits: nothing is computed again.

A worker that was never ready may fail without ending the run and without a recovery, because it has read nothing.
"""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns

from stagepipe.plan import Plan
from stagepipe.runtime.protocol import FailureEvent, Retire, encode_message
from stagepipe.runtime.supervisor.recovery import Added, Event, Retired
from stagepipe.runtime.supervisor.workers import RunResources, WorkerPool, WorkerProcess, WorkerSlot
from stagepipe.timing import ProcessCounter, ProcessState

_log = logging.getLogger("stagepipe")
_change_log = logging.getLogger("stagepipe.workers")
"""Logs a line for each change, which `--log-json` writes too."""


@dataclass(frozen=True)
class ChangeCause:
    """The cause of a change. `gain` is the expected speed-up of the run; 0.2 is a fifth."""

    reason: str = ""
    gain: float = 0.0


@dataclass(kw_only=True)
class WorkerChange:
    """One worker more or less. Times are from `perf_counter_ns`.

    `done_ns` is the time at which the new worker was ready, or the old one was told to take no more items; 0 before.
    With a `failure`, nothing has changed.
    """

    group: int
    stage: str
    workers: int  # after the change
    delta: int  # 1 or -1
    asked_ns: int
    cause: ChangeCause
    done_ns: int = 0
    failure: str = ""


class WorkerScaling:
    """The number of workers of each group, and the changes so far."""

    def __init__(
        self,
        plan: Plan,
        resources: RunResources,
        worker_pool: WorkerPool,
        on_event: Callable[[Event], object],
        send_command: Callable[[int, bytes], None],
    ) -> None:
        """`on_event` takes an event of the recovery. `send_command` sends an encoded command to a worker."""
        self._resources = resources
        self._worker_pool = worker_pool
        self._on_event = on_event
        self._send_command = send_command
        self._slots: list[list[WorkerSlot]] = [[] for _ in plan.processes]
        for slot in resources.slots:
            self._slots[slot.worker_group].append(slot)
        self._wanted = [process.workers for process in plan.processes]
        self._causes = [ChangeCause() for _ in plan.processes]
        self._moving: set[int] = set()
        """The groups that may not have the wanted number yet."""
        self._requests: deque[tuple[int, int, ChangeCause]] = deque()
        self._starting: dict[int, WorkerChange] = {}
        """By process index."""
        self._retiring: set[int] = set()
        """The process indices of retiring workers. They leave when no process uses their memory."""
        self.changes: list[WorkerChange] = []
        """Oldest first."""

    @property
    def _workers(self) -> Mapping[int, WorkerProcess]:
        return self._worker_pool.workers

    def request(self, group: int, workers: int, cause: ChangeCause) -> None:
        """Request a number of workers, limited to the possible numbers. From any thread."""
        self._requests.append((group, min(max(workers, 1), len(self._slots[group])), cause))

    def count(self, group: int) -> int:
        """Return the number of workers that a group has, or will have soon. From any thread."""
        requested = [workers for of, workers, _ in list(self._requests) if of == group]
        return requested[-1] if requested else self._wanted[group]

    # ------------------------------------------------------------------ on the supervisor's thread

    def step(self, era: int) -> list[WorkerProcess]:
        """Begin the changes that can begin now. Returns the started workers. They begin in `era`."""
        while self._requests:
            group, workers, cause = self._requests.popleft()
            self._wanted[group] = workers
            self._causes[group] = cause
            self._moving.add(group)
        started = []
        for group in sorted(self._moving):
            if any(slot.process_index in self._starting for slot in self._slots[group]):
                continue
            working, wanted = self._list_working(group), self._wanted[group]
            if len(working) < wanted:
                worker = self._add(group, len(working) + 1, era)
                started += [] if worker is None else [worker]
            elif len(working) > wanted:
                last = self._workers[working[-1].process_index]
                if last.is_ready and last.poll() is None:  # else its successor will be told
                    self._retire(working[-1], len(working) - 1)
            else:
                self._moving.discard(group)
        return started

    def _list_working(self, group: int) -> list[WorkerSlot]:
        """Return the slots whose workers take items, or will."""
        return [
            slot
            for slot in self._slots[group]
            if slot.process_index in self._workers and slot.process_index not in self._retiring
        ]

    def _add(self, group: int, workers: int, era: int) -> WorkerProcess | None:
        """Start a worker in the first empty slot; None if retiring workers still occupy all slots."""
        slot = next((slot for slot in self._slots[group] if slot.process_index not in self._workers), None)
        if slot is None:
            return None
        change = self._starting[slot.process_index] = self._note(slot, workers, 1)
        self._on_event(Added(slot.process_index))
        self._resources.fill_slot(slot, is_first=not self._worker_pool.has_started(slot))
        try:
            worker = self._worker_pool.start_worker(slot, era, change.asked_ns)
        except OSError as error:
            worker = None
            self._give_up(slot, f"it could not be started: {error}")
        if worker is None:
            self._leave_empty(slot, era)
        return worker

    def _retire(self, slot: WorkerSlot, workers: int) -> None:
        change = self._note(slot, workers, -1)
        self._retiring.add(slot.process_index)
        self._tell_to_retire(slot.process_index)
        _finish(change)

    def _tell_to_retire(self, process_index: int) -> None:
        self._resources.board.region(process_index)[ProcessCounter.PROCESS_STATE] = ProcessState.RETIRING
        self._send_command(process_index, encode_message(Retire()))

    def _note(self, slot: WorkerSlot, workers: int, delta: int) -> WorkerChange:
        change = WorkerChange(
            group=slot.worker_group,
            stage=slot.process_plan.first_stage.row,
            workers=workers,
            delta=delta,
            asked_ns=perf_counter_ns(),
            cause=self._causes[slot.worker_group],
        )
        self.changes.append(change)
        return change

    def handle_ready(self, worker: WorkerProcess) -> None:
        """Handle a worker that has built its stages. The successor of a worker that died while retiring retires too."""
        process_index = worker.slot.process_index
        change = self._starting.pop(process_index, None)
        if change is not None:
            _finish(change)
        if process_index in self._retiring:
            self._tell_to_retire(process_index)

    def takes_failure(self, event: FailureEvent) -> bool:
        """Whether the failed worker was added and cannot be built: the run then continues without it."""
        if event.generation or event.process not in self._starting:
            return False
        worker = self._workers[event.process]
        self._give_up(worker.slot, event.message)
        worker.send_signal(signal.SIGKILL)
        return True

    def takes_exit(self, worker: WorkerProcess, era: int) -> bool:
        """Whether an exit needs no recovery, because the worker has retired, in `era`, or was added and never ready."""
        slot = worker.slot
        state = self._resources.board.region(slot.process_index)[ProcessCounter.PROCESS_STATE]
        if slot.process_index in self._retiring and worker.poll() == 0 and state == ProcessState.STOPPED:
            self._retiring.discard(slot.process_index)
        elif slot.process_index in self._starting and state == ProcessState.STARTING:
            self._give_up(slot, f"it {worker.describe_exit()}")
        else:
            return False
        self._worker_pool.remove(worker)
        self._leave_empty(slot, era)
        return True

    def _give_up(self, slot: WorkerSlot, failure: str) -> None:
        """Give up adding a worker. Its group stays unchanged until the next request."""
        change = self._starting[slot.process_index]
        if change.failure:
            return
        change.failure = failure
        group = slot.worker_group
        self._wanted[group] = change.workers - 1
        _log.warning(
            "%s continues with %d of %d workers, because another worker could not be added: %s",
            change.stage,
            change.workers - 1,
            change.workers,
            failure,
        )

    def _leave_empty(self, slot: WorkerSlot, era: int) -> None:
        self._starting.pop(slot.process_index, None)
        self._resources.empty_slot(slot, era)
        self._on_event(Retired(slot.process_index))


def _finish(change: WorkerChange) -> None:
    change.done_ns = perf_counter_ns()
    reason = f": {change.cause.reason}" if change.cause.reason else ""
    numbers = {"stage": change.stage, "workers": change.workers, "delta": change.delta}
    before = change.workers - change.delta
    _change_log.info("%s %d -> %d workers%s", change.stage, before, change.workers, reason, extra=numbers)
