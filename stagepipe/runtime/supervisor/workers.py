"""The worker processes of a run: their resources, start and exit, and the pool that starts them and their successors.

This is in the caller's process. The pipes, arenas, board and wake events of a run are created before any worker starts.
They are anonymous descriptors of the supervisor: nothing appears in the file system.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any, Final

import psutil

from stagepipe.core import Key, bind_lifetime, fork_lock, format_bytes, register_owner
from stagepipe.plan import Plan, ProcessPlan, ProcessRole
from stagepipe.runtime.fork_server import (
    UNKNOWN_EXIT_CODE,
    CallerFork,
    ForkedProcess,
    ForkServer,
    SpawnNeededError,
    find_preload,
    fork_process,
    get_fork_server,
    make_worker_environment,
)
from stagepipe.runtime.logs import OutputCollector
from stagepipe.runtime.protocol import (
    BROKEN_CUDA_EXIT_CODE,
    GROUP_EXIT_CODE,
    STACK_DUMP_SIGNAL,
    GroupEnd,
    SentPlan,
    WorkerSpec,
    extract_user_stacks,
    inherited,
    list_inherited,
    pickle_main_objects,
    send_plan,
    write_worker_spec,
)
from stagepipe.timing import (
    Board,
    BoardLayout,
    ProcessCounter,
    ProcessState,
    TraceBuffer,
    make_board_fd,
    make_trace_fd,
)
from stagepipe.transport import (
    LeaseExtent,
    PipeEnds,
    WakeEvent,
    era_span_bytes,
    extend_arena_fd,
    load_transport,
    make_arena_fd,
    make_byte_pipe,
    make_packet_pipe,
    punch_hole,
)


@dataclass
class WorkerStartHook:
    """A function that each worker calls with its WorkerSpec at its start, before it connects to the supervisor.

    `target` is "package.module:function", importable in the worker; None means no hook. The spec carries `argument` as
    `start_hook_argument`.
    """

    target: str | None = None
    argument: str = ""


WORKER_START_HOOK: Final = WorkerStartHook()
"""The hook of all workers that this process starts from now on. Tests set it with `stagepipe.testing`."""


@dataclass(frozen=True)
class WorkerSlot:
    """A place in the run for one worker at a time. A restarted worker takes over its predecessor's slot.

    An empty slot (`ProcessState.DORMANT`) can take another worker of its group.
    """

    process_index: int  # index among all workers of the run
    worker_group: int  # index of `process_plan` in `Plan.processes`
    worker: int  # index among the workers of the group
    process_plan: ProcessPlan

    @property
    def name(self) -> str:
        """The stage and the worker's number, as in `decode/1`."""
        return f"{self.process_plan.name}/{self.worker}"

    @property
    def is_filled_at_start(self) -> bool:
        """Whether it has a worker when the run starts."""
        return self.worker < self.process_plan.workers


def make_worker_slots(processes: Sequence[ProcessPlan]) -> tuple[WorkerSlot, ...]:
    """Return a slot for each worker that a run may have, in the order of the chain."""
    group_workers = [(group, worker) for group, process in enumerate(processes) for worker in range(process.slot_count)]
    return tuple(
        WorkerSlot(index, group, worker, processes[group]) for index, (group, worker) in enumerate(group_workers)
    )


def group_process_indices(slots: Sequence[WorkerSlot]) -> list[list[int]]:
    """Return the process indices of each worker group, in the order of the chain; the consumer's come last."""
    groups: dict[int, list[int]] = {}
    for slot in slots:
        groups.setdefault(slot.worker_group, []).append(slot.process_index)
    return [*groups.values(), [len(slots)]]


class RunResources:
    """All descriptors of a run. `close` closes each once.

    Processes are numbered: the workers in the order of `slots`, then the consumer.
    """

    def __init__(self, plan: Plan, *, is_traced: bool = False) -> None:
        """Create everything. If that fails, close what was created. With `is_traced`, each process gets a ring."""
        self.plan = plan
        self.slots = make_worker_slots(plan.processes)
        stages_per_process = (*(len(slot.process_plan.stages) for slot in self.slots), 0)
        slots_per_process = tuple(slot.process_plan.thread_count for slot in self.slots)
        self.board_layout = BoardLayout(len(plan.segments), stages_per_process, len(plan.hops), slots_per_process)
        self.arena_memfds: dict[int, int] = {}
        self.release_pipes: dict[int, tuple[int, int]] = {}
        self.transports: dict[str, str] = {}
        """The shared state of each transport that is not built in, by its import path."""
        self.trace_fds: dict[int, int] = {}
        """The rings of a traced run, by process. The consumer has one too."""
        with contextlib.ExitStack() as exit_stack:
            self._exit_stack = exit_stack
            self.consumer_wake_event = self._make_wake_event()
            """Ends the consumer's wait for an item."""
            self.supervisor_pidfd = self._own(os.pidfd_open(os.getpid()))
            """Of this process: workers exit when it has exited."""
            self.board_fd = self._own(make_board_fd(self.board_layout))
            self.board = Board(self.board_fd, self.board_layout)
            """`board_fd`, mapped into this process. It stays readable after `close`."""
            for target in dict.fromkeys(hop.transport for hop in plan.hops if hop.transport):
                transport = load_transport(target, plan.config_dir)
                self.transports[target] = transport.prepare()
                self._exit_stack.callback(transport.remove, self.transports[target])
            self.pipes = [self._make_pipe(hop.capacity_packets) for hop in plan.hops]
            for slot in self.slots:
                self._make_arena(slot.process_index, 0)
            self.worker_wake_events = {slot.process_index: self._make_wake_event() for slot in self.slots}
            self.segment_wake_events = [self._make_wake_event() for _ in plan.segments]
            if is_traced:
                self.trace_fds = {index: self._own(make_trace_fd()) for index in self.process_indices}
            self.consumer_trace = TraceBuffer(self.trace_fds[self.consumer_process_index]) if is_traced else None
            for hop_index, hop in enumerate(plan.hops):
                self.board.rule_word(hop_index)[0] = hop.rule.word
            for slot in self.slots:
                if not slot.is_filled_at_start:
                    self.board.region(slot.process_index)[ProcessCounter.PROCESS_STATE] = ProcessState.DORMANT
            self._exit_stack = exit_stack.pop_all()

    def _own(self, fd: int) -> int:
        self._exit_stack.callback(os.close, fd)
        return fd

    def _make_wake_event(self) -> WakeEvent:
        wake_event = WakeEvent()
        self._exit_stack.callback(wake_event.close)
        return wake_event

    def _make_pipe(self, capacity_packets: int) -> PipeEnds:
        pipe = make_packet_pipe(capacity_packets)
        self._exit_stack.callback(pipe.close)
        return pipe

    def _make_arena(self, process_index: int, era: int) -> None:
        """Create the arena of a process, which is now in `era`, and the release pipe that the process reads."""
        self.arena_memfds[process_index] = self._own(make_arena_fd(self.plan.memory_bytes, era))
        read_fd, write_fd = make_byte_pipe()
        self.release_pipes[process_index] = self._own(read_fd), self._own(write_fd)

    def add_consumer_arena(self, era: int) -> None:
        """Create an arena, now in `era`, and a release pipe for the consumer, which otherwise has none."""
        self._make_arena(self.consumer_process_index, era)

    @property
    def consumer_process_index(self) -> int:
        """The process index of the consumer, which is the caller's process."""
        return len(self.slots)

    @property
    def release_write_fds(self) -> dict[int, int]:
        """The write ends of the release pipes, by the process that reads them."""
        return {owner: write_fd for owner, (_, write_fd) in self.release_pipes.items()}

    @property
    def process_indices(self) -> range:
        """The process indices of all workers and of the consumer."""
        return range(len(self.slots) + 1)

    @property
    def process_indices_by_group(self) -> list[list[int]]:
        """The process indices of each worker group, in the order of the chain; the consumer's come last."""
        return group_process_indices(self.slots)

    def get_visible_arena_fds(self, slot: WorkerSlot) -> dict[int, int]:
        """Return the arenas that a worker maps, by process index: its own and those of the groups before it."""
        return {
            other.process_index: self.arena_memfds[other.process_index]
            for other in self.slots
            if other.worker_group < slot.worker_group or other == slot
        }

    def get_release_fds(self, slot: WorkerSlot) -> dict[int, int]:
        """Return a worker's release pipes, by process index: its own read end, the write ends of earlier groups."""
        write_fds = {
            other.process_index: self.release_pipes[other.process_index][1]
            for other in self.slots
            if other.worker_group < slot.worker_group
        }
        return {**write_fds, slot.process_index: self.release_pipes[slot.process_index][0]}

    def get_segment_processes_by_stage(self, slot: WorkerSlot) -> tuple[tuple[int, ...], ...]:
        """Return the processes whose arenas hold items of the segment that a worker feeds: itself, then by stage."""
        segment = slot.process_plan.output_segment
        stage_slots = [
            other
            for other in self.slots
            if other.process_plan.role is ProcessRole.STAGE and other.process_plan.input_segment == segment
        ]
        groups = dict.fromkeys(other.worker_group for other in stage_slots)
        return (slot.process_index,), *(
            tuple(other.process_index for other in stage_slots if other.worker_group == group) for group in groups
        )

    def get_reader_processes(self, slot: WorkerSlot) -> tuple[int, ...]:
        """Return the workers that read from a worker's hop; none if the consumer reads from it."""
        return tuple(other.process_index for other in self.slots if other.worker_group == slot.worker_group + 1)

    def get_wake_event_fds(self, slot: WorkerSlot) -> dict[int, int]:
        """Return the wake events of the segments that a worker feeds or consumes, by segment."""
        return {
            segment: self.segment_wake_events[segment].fd
            for segment in {slot.process_plan.input_segment, slot.process_plan.output_segment}
        }

    def begin_era(self, era: int) -> None:
        """Make room for the blocks of an era, before any process enters it."""
        for fd in self.arena_memfds.values():
            extend_arena_fd(fd, self.plan.memory_bytes, era)

    def wipe_before(self, era: int, leases: Iterable[LeaseExtent]) -> None:
        """Free the memory of the eras before `era`, except the leased blocks, and let transports free theirs.

        All processes have dropped the packets of those eras.
        """
        if self.consumer_process_index in self.arena_memfds:  # the caller's own processes hold blocks that none reports
            self.board.stale_bytes = 0  # they stay in use, but no report will ever release them
        else:
            punch_unleased(self.arena_memfds, era * era_span_bytes(self.plan.memory_bytes), leases)
            self.board.stale_bytes = sum(nbytes for _, _, nbytes in set(leases))
        for target, shared in self.transports.items():
            load_transport(target, self.plan.config_dir).reclaim(shared)

    def fill_slot(self, slot: WorkerSlot, *, is_first: bool) -> None:
        """Prepare a dormant slot for a worker. The times of its counters exclude the dormant period."""
        region = self.board.region(slot.process_index)
        dormant_ns = perf_counter_ns() - region[ProcessCounter.STOPPED_NS]
        for counter in (ProcessCounter.STARTED_NS, ProcessCounter.READY_NS, ProcessCounter.FLUSHED_NS):
            if region[counter]:
                region[counter] += dormant_ns
        region[ProcessCounter.PLANNED_STARTS] += not is_first
        region[ProcessCounter.STOPPED_NS] = 0
        region[ProcessCounter.PROCESS_STATE] = ProcessState.STARTING

    def empty_slot(self, slot: WorkerSlot, era: int) -> None:
        """Mark a slot as dormant after its worker retired in `era`, and return its unused memory to the kernel."""
        region = self.board.region(slot.process_index)
        region[ProcessCounter.PROCESS_STATE] = ProcessState.DORMANT
        region[ProcessCounter.STOPPED_NS] = region[ProcessCounter.STOPPED_NS] or perf_counter_ns()
        region[ProcessCounter.LIVE_BYTES] = region[ProcessCounter.HELD_BYTES] = 0
        span = era_span_bytes(self.plan.memory_bytes)
        if slot.process_index in self.arena_memfds:  # none once the run is closed
            punch_hole(self.arena_memfds[slot.process_index], era * span, span)

    def close(self) -> None:
        """Close every descriptor, and remove the state of transports."""
        self.arena_memfds = {}  # the supervisor's thread may be about to begin an era, or to wipe older ones
        self.transports = {}
        self._exit_stack.close()


def punch_unleased(arena_fds: Mapping[int, int], end_offset: int, leases: Iterable[LeaseExtent]) -> None:
    """Free the pages of each arena up to `end_offset`, except all pages that a lease touches."""
    for arena, fd in arena_fds.items():
        offset = 0
        for _, block, nbytes in sorted(lease for lease in leases if lease[0] == arena):
            if block > offset:
                punch_hole(fd, offset, block - offset)
            offset = max(offset, block + nbytes)
        punch_hole(fd, offset, end_offset - offset)


_log = logging.getLogger("stagepipe")
StartedProcess = ForkedProcess | subprocess.Popen[bytes]


class ProcessStarter:
    """Starts the processes of a plan's workers."""

    def __init__(self, plan: Plan) -> None:
        """Start no process yet."""
        self._is_forking = plan.start == "fork"
        self._preload = find_preload(plan)
        self._fork_server: ForkServer | None = None
        self.inherited: Mapping[int, Any] = list_inherited(plan) if plan.forks_caller else {}
        """The objects that workers inherit if they are forks of this process."""
        self._forks_caller = plan.forks_caller
        self._spawn_reasons: list[tuple[str, str]] = []

    def prepare(self) -> None:
        """Wait for the fork server, if one is used. Hold no lock here: a fork of this process must not wait for it."""
        if self._forks_caller:
            self._fork_server = self._fork_server or self._fork_caller()
        elif self._is_forking:
            self._fork_server = get_fork_server(self._preload)

    def _fork_caller(self) -> CallerFork:
        with fork_lock:
            inherited.update(self.inherited)
            try:
                return CallerFork()
            finally:
                inherited.clear()

    def log_spawn_reasons(self) -> None:
        """Log why workers were spawned. Hold no lock here: a log handler may fork, and a fork waits for locks."""
        while self._spawn_reasons:
            _log_spawn(*self._spawn_reasons.pop())

    def start(self, worker_spec: WorkerSpec, crash_log_fd: int, output_fd: int) -> StartedProcess:
        """Start the process of a worker, without waiting or logging. Raises OSError if the system refuses."""
        spec_fd = write_worker_spec(worker_spec)
        try:
            if self._fork_server is not None:
                try:
                    return _fork(self._fork_server, worker_spec, spec_fd, crash_log_fd, output_fd)
                except SpawnNeededError as reason:
                    if self._forks_caller:
                        raise OSError(f"a fork of the calling process is needed: {reason}") from reason
                    self._spawn_reasons.append((worker_spec.plan.name, str(reason)))
            return _spawn(worker_spec, spec_fd, crash_log_fd, output_fd)
        finally:
            os.close(spec_fd)

    def close(self) -> None:
        """End the fork of this process. Call it after the exit of the workers."""
        if self._forks_caller and self._fork_server is not None:
            self._fork_server.close()


def _fork(
    server: ForkServer, worker_spec: WorkerSpec, spec_fd: int, crash_log_fd: int, output_fd: int
) -> ForkedProcess:
    named_fds = {
        "spec": spec_fd,
        "crash_log": crash_log_fd,
        "lifetime": worker_spec.lifetime_fd,
        "output": output_fd,
    }
    threads = worker_spec.plan.first_stage.threads or 1
    return fork_process(server, _make_environment(worker_spec), named_fds, worker_spec.inherited_fds, threads)


def _spawn(worker_spec: WorkerSpec, spec_fd: int, crash_log_fd: int, output_fd: int) -> subprocess.Popen[bytes]:
    own_fds = (spec_fd, crash_log_fd, worker_spec.lifetime_fd)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "stagepipe.worker", *map(str, own_fds)],
        pass_fds=sorted({spec_fd, crash_log_fd, *worker_spec.inherited_fds}),
        env=_make_environment(worker_spec),
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
        process_group=0,
    )


@lru_cache(maxsize=100)  # once for each stage and reason
def _log_spawn(stage: str, reason: str) -> None:
    _log.info("%s starts in a new interpreter, which takes longer than a fork: %s", stage, reason)


def _make_environment(worker_spec: WorkerSpec) -> dict[str, str]:
    plan = worker_spec.plan
    devices = plan.visible_devices
    visible = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices[worker_spec.worker]}
    return make_worker_environment(plan.first_stage.threads or 1, {**visible, **plan.first_stage.env})


_STOP_TIMEOUT_S = 5.0
"""The time for workers to exit after the stop command, before SIGTERM."""
_SIGTERM_TIMEOUT_S = 2.0
"""The time for workers to exit after SIGTERM, before SIGKILL."""
_SIGKILL_TIMEOUT_S = 5.0
"""The time for the kernel to end workers after SIGKILL."""
_STACK_DUMP_TIMEOUT_S = 0.3
_MAX_CRASH_LOG_BYTES = 1 << 16
_SIGNAL_NAMES = {signal_number.value: signal_number.name for signal_number in signal.Signals}


class WorkerProcess:
    """A started worker. Owns its pidfd, its lifetime pipe and the memfd of its crash log."""

    def __init__(
        self,
        slot: WorkerSlot,
        worker_spec: WorkerSpec,
        lifetime_write_fd: int,
        output_collector: OutputCollector,
        starter: ProcessStarter,
    ) -> None:
        """Start the worker.

        It takes ownership of `lifetime_write_fd`, which stays open only in this process, as long as the worker may
        live. `output_collector` gets the worker's output and logs.
        """
        self.slot = slot
        self.incarnation = worker_spec.incarnation
        self._config_path = worker_spec.plan.first_stage.config_path
        self.is_ready = False
        self.ready_at_ns = 0
        self.timeout_reason = ""
        """The timeout for which it was killed; else ""."""
        self.timed_out_key: Key = ()
        """The item that exceeded it, if several were in progress."""
        self.rss_bytes = 0
        self._owned_fds = [lifetime_write_fd]
        register_owner(self)
        try:
            self._crash_log_fd = self._own_fd(os.memfd_create("stagepipe-crash", os.MFD_CLOEXEC))
            with output_collector.open_pipe(slot.process_plan.first_stage.row, slot.worker) as output_fd:
                self._popen = starter.start(worker_spec, self._crash_log_fd, output_fd)
            self.pid = self._popen.pid
            self._process = psutil.Process(self.pid)
            bind_lifetime(worker_spec.lifetime_fd, self.pid)
            self.pidfd = self._own_fd(os.pidfd_open(self.pid))
        except BaseException:
            self._close_fds()
            raise

    def _own_fd(self, fd: int) -> int:
        self._owned_fds.append(fd)
        return fd

    def _close_fds(self) -> None:
        for fd in self._owned_fds:
            os.close(fd)
        self._owned_fds.clear()

    def abandon_in_child(self) -> None:
        """Close the descriptors. A child that kept the lifetime pipe open would keep the worker alive."""
        self._close_fds()

    @property
    def name(self) -> str:
        """The stage and the worker's number, as in `decode/1`."""
        return self.slot.name

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal number if a signal killed it; None while it runs."""
        return self._popen.poll()

    def describe_exit(self, *, has_oom_kill: bool = False) -> str:
        """Return the reason for its exit, as the predicate of a sentence.

        `has_oom_kill`: the kernel's out-of-memory killer has just killed a process.
        """
        exit_code = self._popen.poll()
        if self.timeout_reason:
            return self.timeout_reason
        if exit_code is None:
            return "is running"
        end = self._group_end
        if end is None:
            return self._describe_status(exit_code, has_oom_kill=has_oom_kill)
        if end.status is None:
            return f"ended because {end.reason}"
        how = self._describe_status(end.status, has_oom_kill=has_oom_kill)
        return f"ended because rank {end.rank} of its group {how}"

    @property
    def _group_end(self) -> GroupEnd | None:
        """The cause of the end of its group; None if the group did not end it."""
        if self._popen.poll() != GROUP_EXIT_CODE:
            return None
        size = os.fstat(self._crash_log_fd).st_size
        return GroupEnd.split(self._read_crash_log(max(size - _MAX_CRASH_LOG_BYTES, 0), size))[1]

    def _describe_status(self, exit_code: int, *, has_oom_kill: bool) -> str:
        if exit_code == BROKEN_CUDA_EXIT_CODE:
            return "ended because CUDA no longer works in its process after the error that it printed"
        if exit_code == UNKNOWN_EXIT_CODE:
            return "ended for an unknown reason, because the fork server that started it has died"
        if exit_code >= 0:
            return f"exited unexpectedly with exit code {exit_code}"
        return self._describe_signal_death(-exit_code, has_oom_kill=has_oom_kill)

    def _describe_signal_death(self, signal_number: int, *, has_oom_kill: bool) -> str:
        name = _SIGNAL_NAMES.get(signal_number, f"signal {signal_number}")
        if signal_number == signal.SIGKILL:
            memory_use = self._describe_memory_use()
            if has_oom_kill:
                return f"was killed by the kernel because memory ran out ({name}){memory_use}"
            return f"was killed by {name}, by another process or by the kernel because memory ran out{memory_use}"
        if signal_number == signal.SIGSEGV:
            return (
                f"was killed by {name}: a fault in native code, or a write to its read-only input "
                f"(if so, set `{self._config_path}.mutable=true`)"
            )
        if signal_number == signal.SIGBUS:
            return (
                f"was killed by {name}: memory ran out for a page of shared memory, or a file that it had mapped was "
                f"truncated{self._describe_memory_use()}"
            )
        return f"was killed by {name}"

    def _describe_memory_use(self) -> str:
        return f"; it used {format_bytes(self.rss_bytes)} of memory when last sampled" if self.rss_bytes else ""

    @property
    def has_memory_fault(self) -> bool:
        """Whether SIGSEGV or SIGBUS killed it, or a rank of its group."""
        return self._exit_status in {-signal.SIGSEGV, -signal.SIGBUS}

    @property
    def was_killed_externally(self) -> bool:
        """Whether SIGKILL killed it, or a rank of its group, without a timeout."""
        return self._exit_status == -signal.SIGKILL and not self.timeout_reason

    @property
    def _exit_status(self) -> int | None:
        """Its exit code, or the exit code of the rank that ended its group."""
        end = self._group_end
        return self._popen.poll() if end is None else end.status

    def sample_memory(self) -> None:
        """Record its resident memory, for the message if it is killed."""
        with contextlib.suppress(psutil.Error):
            self.rss_bytes = self._process.memory_info().rss

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped, by SIGSTOP or a debugger. Its timeouts are then suspended."""
        try:
            return self._process.status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
        except psutil.Error:
            return False

    @property
    def is_debugged(self) -> bool:
        """Whether a Python debugger is attached: debugpy and PyCharm's load pydevd's compiled module.

        Whether the worker stands at a breakpoint cannot be seen from outside.
        """
        try:
            return "pydevd" in Path(f"/proc/{self.pid}/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False

    def dump_stacks(self) -> str:
        """Return the Python stacks of all its threads, within 0.3 s. Native code shows as the line that called it."""
        size_before = os.fstat(self._crash_log_fd).st_size
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, STACK_DUMP_SIGNAL)
        size = size_before
        deadline = monotonic() + _STACK_DUMP_TIMEOUT_S
        while monotonic() < deadline:
            select.select((), (), (), _STACK_DUMP_TIMEOUT_S / 30)
            previous_size = size
            size = os.fstat(self._crash_log_fd).st_size
            if size == previous_size > size_before:
                break
        return self._read_crash_log_range(size_before, size)

    def kill_after_timeout(self, reason: str, key: Key = ()) -> None:
        """Write its stacks to its crash log, then kill it. The supervisor then handles it like any other death.

        `key` is the item that took too long, if several were in progress.
        """
        self.timeout_reason = reason
        self.timed_out_key = key
        self.dump_stacks()
        self.send_signal(signal.SIGKILL)

    def read_crash_log(self) -> str:
        """Return the Python stacks that it wrote when a signal killed it or `dump_stacks` requested them; else ""."""
        return self._read_crash_log_range(0, os.fstat(self._crash_log_fd).st_size)

    def _read_crash_log_range(self, start_offset: int, end_offset: int) -> str:
        return extract_user_stacks(GroupEnd.split(self._read_crash_log(start_offset, end_offset))[0])

    def _read_crash_log(self, start_offset: int, end_offset: int) -> str:
        nbytes = min(end_offset - start_offset, _MAX_CRASH_LOG_BYTES)
        return os.pread(self._crash_log_fd, nbytes, start_offset).decode(errors="replace")

    def send_signal(self, signal_number: int) -> None:
        """Send a signal to its process group: to the worker and the children that it forked."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal_number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its exit. Returns False if it still runs after `timeout_s`."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Kill the processes that it forked and left behind, and close its descriptors. Call it after the exit."""
        if self._owned_fds:  # only once: later the process group's number may be reused
            self.send_signal(signal.SIGKILL)
            if isinstance(self._popen, ForkedProcess):
                self._popen.close()
            self._close_fds()


def terminate_workers(workers: Iterable[WorkerProcess], *, is_stop_requested: bool) -> list[str]:
    """Wait for the workers to exit, then send SIGTERM, then SIGKILL. Returns the names of those that needed a signal.

    With `is_stop_requested`, the workers were told to stop, so it waits for that before SIGTERM.
    """
    slow_workers: list[str] = []
    running = [worker for worker in workers if worker.poll() is None]  # pids of exited workers may be reused
    for worker in running:
        if not worker.is_ready:  # it is building its stages and does not receive commands yet
            worker.send_signal(signal.SIGTERM)
    for signal_number, timeout_s in (
        (None, _STOP_TIMEOUT_S),
        (signal.SIGTERM, _SIGTERM_TIMEOUT_S),
        (signal.SIGKILL, _SIGKILL_TIMEOUT_S),
    ):
        if signal_number is not None:
            for worker in running:
                if worker.name not in slow_workers:
                    slow_workers.append(worker.name)
                    _log_slow_exit(worker, is_stop_requested=is_stop_requested)
            for worker in running:
                worker.send_signal(signal_number)
        deadline = monotonic() + (0.0 if signal_number is None and not is_stop_requested else timeout_s)
        running = [worker for worker in running if not worker.wait(max(deadline - monotonic(), 0.0))]
        if not running:
            break
    return slow_workers


def _log_slow_exit(worker: WorkerProcess, *, is_stop_requested: bool) -> None:
    """Log the stacks of a worker that does not exit."""
    if is_stop_requested and worker.is_ready and not worker.is_stopped:
        message = "%s did not exit within %.0f s of the stop request and will be terminated; %s"
        _log.warning(message, worker.name, _STOP_TIMEOUT_S, describe_stacks(worker.dump_stacks()))


def describe_stacks(stacks: str) -> str:
    """Return the end of a sentence that shows stacks. A worker in native code, or in its teardown, may have none.

    >>> describe_stacks("Thread 0x1 (most recent call first):")
    'it runs no Python code'
    """
    return f"its stacks:\n{stacks}" if "  File " in stacks else "it runs no Python code"


class WorkerPool:
    """The workers by process index. Each slot has one worker at a time.

    A successor in a slot takes over the descriptors and counters of its predecessor. Its incarnation is one higher.
    """

    def __init__(
        self, plan: Plan, resources: RunResources, control_socket_fd: int, output_collector: OutputCollector
    ) -> None:
        """Start no worker yet. `output_collector` gets the workers' output and logs."""
        self._plan = plan
        self._resources = resources
        self._control_socket_fd = control_socket_fd
        self._output_collector = output_collector
        self._starter = ProcessStarter(plan)
        self.workers: dict[int, WorkerProcess] = {}
        self._specs: dict[int, WorkerSpec] = {}
        """The spec of the current worker of each slot."""
        self._main_pickles: Mapping[str, bytes] = {}
        self._sent_plans: dict[int, SentPlan] = {}
        """The data sent to the workers of a process plan, by worker group; pickled when the first of them starts."""
        self._lock = threading.Lock()
        self.is_stopping = False

    def start_all(self) -> None:
        """Start the workers with which the plan begins. If one cannot be started, end the others."""
        if not self._plan.forks_caller:
            self._main_pickles = pickle_main_objects(self._plan)
        self._starter.prepare()
        try:
            for slot in self._resources.slots:
                if slot.is_filled_at_start:
                    self._start_worker(slot, 0, perf_counter_ns())
        except BaseException:
            terminate_workers(self.workers.values(), is_stop_requested=False)
            raise
        self._starter.log_spawn_reasons()

    def start_worker(self, slot: WorkerSlot, era: int, since_ns: int) -> WorkerProcess | None:
        """Start a worker that has been missing since `since_ns` (`perf_counter_ns`). None once the pool is stopping.

        Raises OSError if it cannot be started.
        """
        self._starter.prepare()
        with self._lock:
            worker = None if self.is_stopping else self._start_worker(slot, era, since_ns)
        self._starter.log_spawn_reasons()
        return worker

    def has_started(self, slot: WorkerSlot) -> bool:
        """Whether the slot has ever had a worker."""
        return slot.process_index in self._specs

    def remove(self, worker: WorkerProcess) -> None:
        """Forget a worker that has ended and whose slot stays empty. The caller closes the worker."""
        with self._lock:
            if not self.is_stopping:  # else other threads iterate over all of them
                del self.workers[worker.slot.process_index]

    def begin_stop(self) -> bool:
        """Start no more workers from now on. Returns False if the pool is stopping already."""
        with self._lock:
            was_stopping = self.is_stopping
            self.is_stopping = True
        return not was_stopping

    def _start_worker(self, slot: WorkerSlot, era: int, started_ns: int) -> WorkerProcess:
        with fork_lock:  # a child that inherits a lifetime pipe must know it
            lifetime_read_fd, lifetime_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            previous = self._specs.get(slot.process_index) or self._make_spec(slot)
            spec = self._specs[slot.process_index] = replace(
                previous,
                incarnation=previous.incarnation + 1,
                era=era,
                lifetime_fd=lifetime_read_fd,
                started_ns=started_ns,
                start_hook=WORKER_START_HOOK.target,
                start_hook_argument=WORKER_START_HOOK.argument,
            )
            try:
                worker = self.workers[slot.process_index] = WorkerProcess(
                    slot, spec, lifetime_write_fd, self._output_collector, self._starter
                )
            finally:
                os.close(lifetime_read_fd)
        return worker

    def _make_spec(self, slot: WorkerSlot) -> WorkerSpec:
        """Return the spec for all workers of a slot. `_start_worker` replaces the parts that differ."""
        plan, resources = self._plan, self._resources
        sent_plan = self._sent_plans.get(slot.worker_group)
        if sent_plan is None:
            sent_plan = self._sent_plans[slot.worker_group] = send_plan(slot.process_plan, self._starter.inherited)
        return WorkerSpec(
            process=slot.process_index,
            worker=slot.worker,
            worker_group=slot.worker_group,
            incarnation=-1,
            era=0,
            plan=slot.process_plan,
            sent_plan=sent_plan,
            outbound=plan.hops[slot.worker_group],
            in_fd=resources.pipes[slot.worker_group - 1].read_fd if slot.worker_group else None,
            out_fd=resources.pipes[slot.worker_group].write_fd,
            arena_fds=resources.get_visible_arena_fds(slot),
            release_fds=resources.get_release_fds(slot),
            transports=tuple(resources.transports.items()),
            segment_processes_by_stage=resources.get_segment_processes_by_stage(slot),
            reader_processes=resources.get_reader_processes(slot),
            wake_event_fds=resources.get_wake_event_fds(slot),
            wake_fd=resources.worker_wake_events[slot.process_index].fd,
            board_fd=resources.board_fd,
            layout=resources.board_layout,
            lifetime_fd=-1,
            control_socket_fd=self._control_socket_fd,
            supervisor_pidfd=resources.supervisor_pidfd,
            memory_bytes=plan.memory_bytes,
            seed=plan.seed,
            any_order=plan.any_order,
            limit=plan.limit,
            shard=plan.shard,
            stage_names=plan.stage_names,
            config_dir=plan.config_dir,
            sys_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
            main_pickles=self._main_pickles,
            started_ns=0,
            keep_idle_pages=plan.keep_idle_pages,
            is_probe=plan.is_probe,
            records_digests=plan.records_digests,
            trace_fd=resources.trace_fds.get(slot.process_index),
        )

    def close(self) -> None:
        """Close the descriptors of all workers. Call it after their exit."""
        for worker in self.workers.values():
            worker.close()
        self._starter.close()
        while self._sent_plans:
            os.close(self._sent_plans.popitem()[1].fd)
