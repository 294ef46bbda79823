"""Item timeouts, start timeouts, stalled runs, and warnings of too little shared memory.

Runs on the supervisor's thread, in the caller's process. It only reads the board, so items pay nothing for it.

An item ages while its worker runs the stage's code. It does not age while the worker waits (a waiting worker updates
its heartbeat) or is stopped. Nor does it age while the machine sleeps or this process is stopped: one check counts at
most two check intervals, however long ago the previous check was. A worker with an attached debugger is never killed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic_ns, perf_counter_ns

from stagepipe.core import Key, RunError, format_bytes, format_ns, join_names
from stagepipe.plan import Plan, StagePlan
from stagepipe.runtime.flow import IN_FLIGHT_MEMORY_FRACTION
from stagepipe.runtime.protocol import ArenaFullEvent, format_item
from stagepipe.runtime.supervisor.recovery import Stall
from stagepipe.runtime.supervisor.workers import WorkerProcess, WorkerSlot
from stagepipe.timing import AWAITING, Board, ProcessCounter, ProcessRegion, ProcessState, StageCounter


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """The current activity of a worker. With `item` set and `item_age_ns` 0, it waits to send the item."""

    name: str
    is_stopped: bool = False
    is_debugged: bool = False
    starting_ns: int = 0
    item: str = ""
    item_age_ns: int = 0
    other_work_ns: int = 0  # time of work without a current item: collating a batch, rebuilding a stage

    @property
    def is_working(self) -> bool:
        """Whether it can make progress without any other process."""
        return (
            self.is_stopped
            or bool(self.starting_ns)
            or bool(self.item and self.item_age_ns)
            or bool(self.other_work_ns)
        )


def is_deadlocked(statuses: Sequence[WorkerStatus]) -> bool:
    """Whether every worker waits for another one."""
    return not any(status.is_working for status in statuses)


def describe_stall(statuses: Sequence[WorkerStatus], stalled_ns: int) -> str:
    """Return the text of the warning: busy workers first, then those that wait to send an item, then idle ones.

    >>> decode = WorkerStatus(name="decode/0", item="7", item_age_ns=12 * 10**9)
    >>> describe_stall([WorkerStatus(name="source/0"), decode, WorkerStatus(name="batch/0")], 10 * 10**9)
    'no item has moved for 10 s: decode/0 has been processing item 7 for 12 s; source/0 and batch/0 are waiting'
    """
    working_texts = [_describe_work(status) for status in statuses if status.is_working]
    waiting = [status for status in statuses if not status.is_working]
    blocked_texts = [
        f"{status.name} is waiting for room downstream to send item {status.item}" for status in waiting if status.item
    ]
    idle_names = list(dict.fromkeys(status.name for status in waiting if not status.item))  # a row may have several
    idle_text = f"{join_names(idle_names)} {'is' if len(idle_names) == 1 else 'are'} waiting" if idle_names else ""
    texts = [*(working_texts or ["no worker is busy"]), *blocked_texts, idle_text]
    return f"no item has moved for {format_ns(stalled_ns)}: " + "; ".join(filter(None, texts))


def _describe_work(status: WorkerStatus) -> str:
    if status.is_debugged:
        return f"{_describe_work(replace(status, is_debugged=False))}, with a debugger attached"
    if status.is_stopped:
        return f"{status.name} is stopped (SIGSTOP; `kill -CONT` resumes it)"
    if status.starting_ns:
        return f"{status.name} has been starting for {format_ns(status.starting_ns)}"
    if status.item:
        return f"{status.name} has been processing item {status.item} for {format_ns(status.item_age_ns)}"
    return f"{status.name} has been busy for {format_ns(status.other_work_ns)}"


_log = logging.getLogger("stagepipe")


class MemoryPressureMonitor:
    """Warns once per run about memory pressure that admission controllers have published on the board."""

    def __init__(self, plan: Plan, board: Board) -> None:
        self._plan = plan
        self._board = board
        self._has_warned = False

    def check(self) -> None:
        """Warn about the first segment whose window does not fit into `memory`."""
        for segment_index, segment in enumerate(self._plan.segments):
            pressure = None if self._has_warned else self._board.read_memory_pressure(segment_index)
            if pressure is not None:
                self._has_warned = True
                _log.warning("%s", describe_memory_pressure(*pressure, segment.window, self._plan))


def compute_wanted_bytes(item_bytes: int, window_items: int) -> int:
    """Return the `memory` that holds a whole window, in bytes, rounded up to MiB."""
    return -int(-window_items * item_bytes / IN_FLIGHT_MEMORY_FRACTION // (1 << 20)) << 20


def describe_memory_pressure(item_bytes: int, fitting_items: int, window_items: int, plan: Plan) -> str:
    """Return the text of the warning: how much `memory` the window needs."""
    wanted_mib = compute_wanted_bytes(item_bytes, window_items) >> 20
    return (
        f"each item in flight takes about {format_bytes(item_bytes)} of shared memory, so only {fitting_items} of a "
        f"window of {window_items} fit in `memory` ({format_bytes(plan.memory_bytes)}) and workers may wait; set "
        f"`memory={wanted_mib}MiB` or more to fit the window"
    )


def make_arena_full_error(event: ArenaFullEvent, plan: Plan, board: Board, slots: Iterable[WorkerSlot]) -> RunError:
    """Return the error for an item that does not fit into shared memory even as the only one in flight."""
    holder = _describe_largest_holder(event, plan, board, slots)
    return RunError(
        f"stage {event.stage}, worker {event.worker}, item {event.item or '?'}: {event.error}, and only one item is "
        f"in flight{holder}; raise `memory` (now {format_bytes(plan.memory_bytes)}) or make the stage return less",
        stage=event.stage,
        worker=event.worker,
        item=event.item,
    )


def _describe_largest_holder(event: ArenaFullEvent, plan: Plan, board: Board, slots: Iterable[WorkerSlot]) -> str:
    """Name the process that holds most of the shared memory; "" if none holds an eighth of it."""
    held_bytes = {slot.name: board.region(slot.process_index)[ProcessCounter.HELD_BYTES] for slot in slots}
    sender_name = next(slot.name for slot in slots if slot.process_index == event.process)
    held_bytes[sender_name] = max(held_bytes[sender_name], event.held_bytes)
    held_bytes["the caller"] = board.consumer_held_bytes()
    name = max(held_bytes, key=held_bytes.__getitem__)
    if held_bytes[name] >= plan.memory_bytes // 8:
        return f"; {name} holds {format_bytes(held_bytes[name])} of it"
    unread_bytes = board.region(event.process)[ProcessCounter.LIVE_BYTES]
    if unread_bytes >= plan.memory_bytes // 8:
        return f"; {format_bytes(unread_bytes)} of it is sent but not read yet"
    return ""


_MAX_CHECK_INTERVAL_NS = 500_000_000
_MIN_CHECK_INTERVAL_NS = 10_000_000
_CONSUMER_HEARTBEAT_MAX_AGE_NS = 1_000_000_000
"""The consumer updates its heartbeat while it waits for an item. An older heartbeat means that the caller is busy."""
_IDLE_HEARTBEAT_MAX_AGE_NS = 2_000_000_000
"""A waiting worker updates its heartbeat four times a second. With an older heartbeat it works, if not on an item."""
_MIN_TIMEOUT_NS = 500_000_000
"""The lower bound of `timeout`: a worker that waits for room downstream updates its heartbeat every 0.25 s."""
_MEMORY_SAMPLE_INTERVAL_NS = 1_000_000_000
_STALL_WARNING_AFTER_NS = 10_000_000_000
"""The stall, while the consumer waits, after which a warning is logged. The next warning comes after twice the time."""
_START_WARNING_AFTER_NS = 20_000_000_000
"""The same while a worker starts, because imports and models take long on a busy machine."""
_STALL_RECOVERY_AFTER_NS = 30_000_000_000
"""The stall without a busy worker after which the run seeks to the last delivered item."""


@dataclass(frozen=True, kw_only=True)
class _WorkerObservation:
    """The activity of a process at the last check, and its duration."""

    key: Key = ()
    stage_index: int = 0
    heartbeat_ns: int = 0
    item_age_ns: int = 0
    starting_ns: int = 0
    ages_ns: Mapping[tuple[Key, int], int] = field(default_factory=dict)
    """Of items in progress on threads, by key and time at which the stage's code last resumed. `key` is the oldest."""
    is_awaiting: bool = False
    """Whether no code works on any of them. Then the worker itself limits the waits."""

    def count_overdue(self, limit_ns: int) -> int:
        """Return how many items on threads the stage's code has worked on for longer."""
        return sum(since != AWAITING and age_ns > limit_ns for (_, since), age_ns in self.ages_ns.items())


class Watchdog:
    """Checks all workers at intervals. Only the supervisor's thread uses it."""

    def __init__(self, plan: Plan, board: Board, workers: Mapping[int, WorkerProcess]) -> None:
        """`workers` is the live mapping of the worker pool: a restarted worker replaces its predecessor in it."""
        self._plan = plan
        self._board = board
        self._workers = workers
        self._consumer_process_index = sum(process.slot_count for process in plan.processes)
        timeouts = [stage.timeout_ns for process in plan.processes for stage in process.stages if stage.timeout_ns]
        self._check_interval_ns = max(
            min([_MAX_CHECK_INTERVAL_NS, *(timeout // 8 for timeout in timeouts)]), _MIN_CHECK_INTERVAL_NS
        )
        self._memory_pressure_monitor = MemoryPressureMonitor(plan, board)
        self._checked_at_ns = monotonic_ns()
        self._memory_sampled_at_ns = 0
        self._stalled_ns = 0
        self._progress_hash = -1
        self._next_warning_ns = _STALL_WARNING_AFTER_NS
        self._next_recovery_ns = _STALL_RECOVERY_AFTER_NS
        self._observations_by_pid: dict[int, _WorkerObservation] = {}
        self._debugged_pids: set[int] = set()

    @property
    def time_to_next_check_s(self) -> float:
        """The seconds until the next check is due."""
        return max(self._check_interval_ns - (monotonic_ns() - self._checked_at_ns), 0) / 1e9

    def check(self) -> Stall | None:
        """Check all workers, if a check is due. Returns the stall if the run needs a seek to end it."""
        now_ns = monotonic_ns()
        elapsed_ns = now_ns - self._checked_at_ns
        if elapsed_ns < self._check_interval_ns:
            return None
        self._checked_at_ns = now_ns
        counted_ns = min(elapsed_ns, 2 * self._check_interval_ns)
        for process_index, worker in self._workers.items():
            if worker.poll() is None and not worker.timeout_reason:
                self._check_worker(process_index, worker, counted_ns)
        self._observations_by_pid = {
            worker.pid: self._observations_by_pid.get(worker.pid, _WorkerObservation())
            for worker in self._workers.values()
        }
        if now_ns - self._memory_sampled_at_ns > _MEMORY_SAMPLE_INTERVAL_NS:
            self._memory_sampled_at_ns = now_ns
            for worker in self._workers.values():
                worker.sample_memory()
            self._memory_pressure_monitor.check()
        return self._check_for_stall(counted_ns)

    # ------------------------------------------------------------------ one worker

    def _check_worker(self, process_index: int, worker: WorkerProcess, elapsed_ns: int) -> None:
        previous = self._observations_by_pid.get(worker.pid, _WorkerObservation())
        # Its ready event may not have arrived: a stage that holds the GIL keeps the control thread from sending it.
        region = self._board.region(process_index)
        if not worker.is_ready and region[ProcessCounter.PROCESS_STATE] == ProcessState.STARTING:
            observation = _WorkerObservation(starting_ns=previous.starting_ns + elapsed_ns)
            limit_ns = max(stage.start_timeout_ns for stage in worker.slot.process_plan.stages)
            if observation.starting_ns > limit_ns and not worker.is_stopped:
                limit = f"its `start_timeout` of {format_ns(limit_ns)}"
                if not self._is_debugged(worker, limit):
                    worker.kill_after_timeout(f"was not ready within {limit} and was killed")
        else:
            observation = self._observe_item(region, worker, previous, elapsed_ns)
            stage = _get_current_stage(worker, observation)
            is_running = not observation.is_awaiting
            limit_ns = max(stage.timeout_ns or 0, _MIN_TIMEOUT_NS)
            if stage.timeout_ns and is_running and observation.item_age_ns > limit_ns:
                limit = f"its `timeout` of {format_ns(stage.timeout_ns)}"
                # Code that holds the interpreter's lock stops all threads, so the item at fault is unknown.
                key = observation.key if observation.count_overdue(limit_ns) == 1 else ()
                if not self._is_debugged(worker, limit):
                    worker.kill_after_timeout(f"exceeded {limit} and was killed", key)
        self._observations_by_pid[worker.pid] = observation

    def _is_debugged(self, worker: WorkerProcess, limit: str) -> bool:
        """Whether a debugger keeps a worker alive beyond its limit. Logs it once."""
        if worker.pid not in self._debugged_pids:
            if not worker.is_debugged:
                return False
            self._debugged_pids.add(worker.pid)
            _log.warning("%s has exceeded %s; it continues, because a debugger is attached", worker.name, limit)
        return True

    def _observe_item(
        self, region: ProcessRegion, worker: WorkerProcess, previous: _WorkerObservation, elapsed_ns: int
    ) -> _WorkerObservation:
        if region.slots:
            return _observe_slots(region, previous, 0 if worker.is_stopped else elapsed_ns)
        current = _WorkerObservation(
            key=region.current_key,
            stage_index=region[ProcessCounter.CURRENT_STAGE],
            heartbeat_ns=region[ProcessCounter.HEARTBEAT_NS],
        )
        if not current.key or (current.key, current.stage_index, current.heartbeat_ns) != (
            previous.key,
            previous.stage_index,
            previous.heartbeat_ns,
        ):
            return current
        return replace(
            current, item_age_ns=previous.item_age_ns if worker.is_stopped else previous.item_age_ns + elapsed_ns
        )

    # ------------------------------------------------------------------ all workers

    def _check_for_stall(self, elapsed_ns: int) -> Stall | None:
        progress_hash = self._compute_progress_hash()
        consumer = self._board.region(self._consumer_process_index)
        if (
            progress_hash != self._progress_hash
            or perf_counter_ns() - consumer[ProcessCounter.HEARTBEAT_NS] > _CONSUMER_HEARTBEAT_MAX_AGE_NS
        ):
            self._progress_hash = progress_hash
            self._stalled_ns = 0
            self._next_warning_ns = _STALL_WARNING_AFTER_NS
            self._next_recovery_ns = _STALL_RECOVERY_AFTER_NS
            return None
        self._stalled_ns += elapsed_ns
        if self._stalled_ns < min(self._next_warning_ns, self._next_recovery_ns):
            return None
        statuses = [self._make_worker_status(index, worker) for index, worker in sorted(self._workers.items())]
        if self._stalled_ns < _START_WARNING_AFTER_NS and any(status.starting_ns for status in statuses):
            return None
        if self._stalled_ns >= self._next_warning_ns:
            self._next_warning_ns *= 2
            _log.warning("%s", describe_stall(statuses, self._stalled_ns))
        if self._stalled_ns >= self._next_recovery_ns and is_deadlocked(statuses):
            self._next_recovery_ns += _STALL_RECOVERY_AFTER_NS
            return Stall(describe_stall(statuses, self._stalled_ns), self._stalled_ns, perf_counter_ns())
        return None

    def _compute_progress_hash(self) -> int:
        """Return a number that changes whenever an item moves."""
        board = self._board
        counters = [board.generation, board.read_consumed(len(self._plan.segments) - 1, board.generation) or 0]
        for process_index in self._workers:
            region = board.region(process_index)
            counters += [
                region[ProcessCounter.ITEMS_SENT],
                *(region.stage_region(index)[StageCounter.ITEMS] for index in range(region.stage_count)),
            ]
            counters += [region[ProcessCounter.DOWNTIME_NS], region[ProcessCounter.READY_NS]]
        return hash(tuple(counters))

    def _make_worker_status(self, process_index: int, worker: WorkerProcess) -> WorkerStatus:
        observation = self._observations_by_pid.get(worker.pid, _WorkerObservation())
        heartbeat_age_ns = perf_counter_ns() - self._board.region(process_index)[ProcessCounter.HEARTBEAT_NS]
        return WorkerStatus(
            name=f"{worker.slot.process_plan.first_stage.row}/{worker.slot.worker}",
            is_stopped=worker.is_stopped,
            is_debugged=worker.is_debugged,
            starting_ns=0 if worker.is_ready else max(observation.starting_ns, 1),
            item=format_item(self._plan.shard, observation.key),
            item_age_ns=observation.item_age_ns,
            other_work_ns=heartbeat_age_ns if heartbeat_age_ns > _IDLE_HEARTBEAT_MAX_AGE_NS else 0,
        )


def _observe_slots(region: ProcessRegion, previous: _WorkerObservation, elapsed_ns: int) -> _WorkerObservation:
    """Observe the items of a worker's threads. Each ages separately, whatever the main thread does."""
    running = [(slot.key, slot.running_since_ns) for slot in region.slots]
    ages_ns = {
        each: previous.ages_ns[each] + elapsed_ns if each in previous.ages_ns else 0 for each in running if all(each)
    }
    if not ages_ns:
        return _WorkerObservation()
    oldest = max(ages_ns, key=lambda each: (each[1] != AWAITING, ages_ns[each]))
    return _WorkerObservation(
        key=oldest[0], item_age_ns=ages_ns[oldest], ages_ns=ages_ns, is_awaiting=oldest[1] == AWAITING
    )


def _get_current_stage(worker: WorkerProcess, observation: _WorkerObservation) -> StagePlan:
    stages = worker.slot.process_plan.stages
    return stages[min(observation.stage_index, len(stages) - 1)]
