"""The Worker: it builds its stages and its role, enters each seek, and steps the role until a stop.

Runs in the worker's process. Failures go to the supervisor. A worker that can no longer use CUDA ends, because all its
later items would fail too; the supervisor restarts it. An assertion in a kernel or an access to a wrong address breaks
CUDA for the rest of the process: https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
(cudaErrorAssert, cudaErrorIllegalAddress).
"""

from __future__ import annotations

import os
import sys
from functools import partial
from time import perf_counter_ns
from typing import Any

from stagepipe.core import (
    ArenaFullError,
    UsageError,
    end_if_forked,
    share_datasets,
    stage_locals,
    this_process,
)
from stagepipe.plan import ProcessRole, StagePlan
from stagepipe.runtime.dead_letters import DeadLetterWriter
from stagepipe.runtime.execution import READ_ONCE_MESSAGE, SourceReader, StageError, StageRunner
from stagepipe.runtime.flow import AdmissionController, FedSegment, ProgressPublisher
from stagepipe.runtime.protocol import (
    BROKEN_CUDA_EXIT_CODE,
    ArenaFullEvent,
    FailureEvent,
    ReadyEvent,
    Seek,
    WorkerSpec,
    decode_command,
    describe_failure,
    format_error,
    format_item,
    format_key,
    format_user_traceback,
    name_user_error_type,
    read_only_hint,
)
from stagepipe.runtime.worker.chunks import ChunkSize
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.runtime.worker.group import Group, GroupStageRunner
from stagepipe.runtime.worker.hop_output import (
    HopOutput,
    ItemDigests,
    ItemProbe,
    ObservedHopOutput,
    SeekInterruptError,
    WorkerContext,
    allocate_shared,
    reject_read_once_source,
)
from stagepipe.runtime.worker.roles import OrderPointRole, SegmentBoundary, SourceRole, StageRole
from stagepipe.runtime.worker.threads import ConcurrentRole, MainThread
from stagepipe.runtime.worker.upkeep import WorkerUpkeep
from stagepipe.timing import Board, ProcessCounter, ProcessState, TraceBuffer, TraceKind
from stagepipe.transport import (
    Arena,
    Receiver,
    SharedMemoryPool,
    WakeEvent,
    make_receiver,
    make_sender,
    open_transports,
)


def is_cuda_broken() -> bool:
    """Whether this process has started CUDA and every call now fails."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return False
    try:
        cuda.synchronize()
    except RuntimeError:
        return True
    return False


def exit_if_cuda_is_broken(error: Exception) -> None:
    """Print `error` and end the process at once if CUDA is broken. The board still names the item."""
    if is_cuda_broken():
        print(error, file=sys.stderr)  # noqa: T201 - the supervisor forwards it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(BROKEN_CUDA_EXIT_CODE)


class FailureReporter:
    """Sends the events for errors that end a worker's work, with their stage and item."""

    def __init__(self, spec: WorkerSpec, control: ControlClient, board: Board, memory: SharedMemoryPool) -> None:
        """Send through `control`; the board names the current item."""
        self._spec = spec
        self._control = control
        self._region = board.region(spec.process)
        self._memory = memory

    def report_build_failure(self, stage: str, error: BaseException) -> None:
        """Report that a stage, or its surroundings, cannot be built."""
        message = describe_failure(stage, self._spec.worker, "", f"cannot be built: {format_error(error)}")
        self._send_failure(0, stage, "", message, format_user_traceback(error), name_user_error_type(error))

    def report(self, generation: int, error: Exception) -> None:
        """Report an error of an item: of its stage, of the memory, of the transport, or an unpicklable item."""
        stages = self._spec.plan.stages
        if isinstance(error, StageError):
            message = error.describe(self._spec.worker, read_only_hint(error.cause, stages[0].row))
            error_type = name_user_error_type(error.cause)
            self._send_failure(generation, error.stage, format_key(error.key), message, error.trace, error_type)
            return
        stage, item = stages[-1].row, format_item(self._spec.shard, self._region.current_key[:1])
        if isinstance(error, ArenaFullError):
            held_bytes = self._memory.held_bytes()  # the frames of the failed call still hold their arrays
            self._send(ArenaFullEvent, generation, stage, item, error=str(error), held_bytes=held_bytes)
        else:
            message = describe_failure(stage, self._spec.worker, item, format_error(error))
            trace, error_type = format_user_traceback(error), name_user_error_type(error)
            self._send_failure(generation, stage, item, message, trace, error_type)

    def _send_failure(  # noqa: PLR0917
        self, generation: int, stage: str, item: str, message: str, trace: str, error_type: str
    ) -> None:
        self._send(FailureEvent, generation, stage, item, message=message, trace=trace, error_type=error_type)

    def _send(
        self, event: type[FailureEvent | ArenaFullEvent], generation: int, stage: str, item: str, **more: Any
    ) -> None:
        spec = self._spec
        self._control.send(
            event(process=spec.process, worker=spec.worker, generation=generation, stage=stage, item=item, **more)
        )


_COMMAND_WAIT_S = 0.25
_MIN_LEAVE_WAIT_S = 0.005
"""The first wait after which a retiring worker checks whether its memory is in use; each further wait is doubled."""
WorkerRole = SourceRole | StageRole | OrderPointRole


class Worker:
    """One worker. Its work runs on the main thread; the control client and each item of `concurrency` have threads."""

    def __init__(self, spec: WorkerSpec, control: ControlClient, group: Group | None = None) -> None:
        """Map the inherited memory; `build_role` builds the stages. `group` is the stage's group, if it has one."""
        self._spec = spec
        self._pid = this_process.pid
        self._control = control
        self._board = Board(spec.board_fd, spec.layout)
        self._region = self._board.region(spec.process)
        self._region[ProcessCounter.STARTED_NS] = self._region[ProcessCounter.STARTED_NS] or spec.started_ns
        self._region[ProcessCounter.PID] = os.getpid()
        self._region[ProcessCounter.INCARNATION] = spec.incarnation
        arena = Arena(spec.process, spec.arena_fds[spec.process], spec.memory_bytes, spec.era)
        self._memory = SharedMemoryPool(
            arena, dict(spec.arena_fds), dict(spec.release_fds), limit_bytes=spec.memory_bytes
        )
        if spec.transports:
            self._memory.attach_transports(open_transports(spec.transports, spec.config_dir))
        self._upkeep = WorkerUpkeep(spec, control, self._board, self._memory)
        self._trace = None if spec.trace_fd is None else TraceBuffer(spec.trace_fd)
        self._sender = make_sender(
            self._trace,
            spec.out_fd,
            self._memory,
            spec.outbound.rule,
            control.wake_event,
            self.is_interrupted,
            self._upkeep.send_recorder,
            self._upkeep.on_tick,
            self._board.rule_word(spec.worker_group),
        )
        self._upkeep.attach_sender(self._sender)
        control.attach_sender(self._sender)
        self._stages: list[StageRunner] = []
        self._generation = 0
        self._failed_generation = 0
        self._failures = FailureReporter(spec, control, self._board, self._memory)
        self._building_stage = spec.plan.stages[0].row
        self._group = group
        if group is not None:
            self._upkeep.group = group
            group.on_build_failure = partial(self._failures.report_build_failure, self._building_stage)

    # ------------------------------------------------------------------ waits

    def is_interrupted(self) -> bool:
        """Whether a seek or a stop has made the current work obsolete."""
        return self._control.is_stopping or self._board.generation != self._generation

    def _takes_no_items(self) -> bool:
        """Whether the receiver must not wait for another item."""
        return self._control.is_retiring or self.is_interrupted()

    def _wait_for_command(self) -> None:
        """Wait a short time for a seek or a stop. The time counts as waiting for input."""
        self._upkeep.on_tick()
        started_ns = perf_counter_ns()
        self._control.wait(_COMMAND_WAIT_S)
        self._upkeep.idle_ns += perf_counter_ns() - started_ns

    # ------------------------------------------------------------------ building

    @share_datasets()
    def build_role(self) -> WorkerRole:
        """Build the stages, and the role that runs them."""
        spec = self._spec
        plan = spec.plan
        self._stages = [self._build_stage(index, stage) for index, stage in enumerate(plan.stages)]
        self._upkeep.stages = self._stages
        limit_opencv_threads(plan.first_stage.threads or 1)
        output = self._make_output()
        worker_context = WorkerContext(
            self._region,
            self.is_interrupted,
            self._wait_for_command,
            spec.stage_names,
            self._control.send,
            lambda: self._control.is_retiring,
        )
        stage_locals.allocate = partial(allocate_shared, self._memory.loan, spec.outbound)
        if spec.in_fd is None:
            reader = SourceReader(self._stages[0].target, spec.seed, spec.limit, spec.shard)
            if spec.incarnation and reader.is_single_pass:
                raise UsageError(READ_ONCE_MESSAGE)
            admission = self._make_admission(plan.output_segment)
            chunk_size = self._make_chunk_size()
            return SourceRole(reader, self._stages, output, admission, worker_context, chunk_size=chunk_size)
        receiver = self._upkeep.receiver = self._make_receiver(spec.in_fd, private=plan.copies_all_input)
        for stage in self._stages:
            stage.get_queue_ns = lambda: receiver.queue_ns
        if plan.thread_count:
            return self._make_concurrent_role(output, receiver, worker_context)
        if plan.role is ProcessRole.STAGE:
            return StageRole(
                self._stages,
                output,
                receiver,
                worker_context,
                sends_chunks=plan.sends_chunks,
                chunk_batch_size=plan.chunk_batch_size,
            )
        progress = self._upkeep.progress = ProgressPublisher(
            self._board, plan.input_segment, WakeEvent(spec.wake_event_fds[plan.input_segment])
        )
        admission = self._make_admission(plan.output_segment)
        boundary = SegmentBoundary(receiver, progress, admission, plan.input_segment, spec.any_order)
        return OrderPointRole(self._stages, output, boundary, worker_context)

    def _make_concurrent_role(
        self, output: HopOutput, receiver: Receiver, worker_context: WorkerContext
    ) -> ConcurrentRole:
        main = MainThread(self._control, self._upkeep.on_tick, self._memory.loan, self._spec.outbound)
        role = ConcurrentRole(self._stages[0], output, receiver, worker_context, main)
        self._upkeep.threads = role
        return role

    def _make_chunk_size(self) -> ChunkSize | None:
        """Return the size of the source's chunks; None if each item must go singly, for a measurement."""
        spec = self._spec
        if not spec.plan.sends_chunks or spec.is_probe or spec.records_digests:
            return None
        regions = [self._board.region(process) for process in spec.segment_processes_by_stage[1]]
        return ChunkSize(regions, spec.plan.chunk_batch_size)

    def _make_output(self) -> HopOutput:
        spec = self._spec
        if spec.is_probe or spec.records_digests:
            if spec.in_fd is None:
                reject_read_once_source(self._stages[0].target, spec.process, self._control)
            return ObservedHopOutput(self._sender, self._make_observer())
        dead_letters = DeadLetterWriter(
            process_index=spec.process,
            worker=spec.worker,
            first_stage_name=spec.plan.first_stage.row,
            shard=spec.shard,
            any_order=spec.any_order,
        )
        return HopOutput(self._sender, spec.plan.output_segment, partial(dead_letters.write, self._control.send))

    def _make_observer(self) -> ItemProbe | ItemDigests:
        spec, control = self._spec, self._control
        if spec.records_digests:
            return ItemDigests(spec, control)
        return ItemProbe(spec.process, self._memory, spec.outbound.rule.min_out_of_band_bytes, control)

    def _make_receiver(self, fd: int, *, private: bool) -> Receiver:
        return make_receiver(
            self._trace,
            fd,
            self._memory,
            self._control.wake_event,
            self._takes_no_items,
            self._upkeep.receive_recorder,
            self._upkeep.on_receive_tick,
            copy_all=private,
            readonly=not private,
        )

    def _build_stage(self, index: int, plan: StagePlan) -> StageRunner:
        self._building_stage = plan.row
        spec = self._spec
        shard = spec.shard.for_segment(spec.plan.output_segment if index else spec.plan.input_segment)
        region = self._region.stage_region(index)
        make = StageRunner if self._group is None else partial(GroupStageRunner, self._group)
        stage = make(plan, spec.worker, spec.seed, spec.config_dir, region, shard, self._trace)
        stage.on_survivable_failure = exit_if_cuda_is_broken
        stage.copies_matching = plan.mutable and not spec.plan.copies_all_input
        return stage

    def _make_admission(self, segment: int) -> AdmissionController:
        spec = self._spec
        wake_event = WakeEvent(spec.wake_event_fds[segment])
        fed_segment = FedSegment(segment, spec.segment_processes_by_stage, spec.memory_bytes)
        admission = self._upkeep.admission = AdmissionController(
            self._board,
            fed_segment,
            (wake_event, self._control.wake_event),
            self._upkeep.on_admission_tick,
            self._trace,
        )
        return admission

    # ------------------------------------------------------------------ the loop

    def run(self) -> None:
        """Run until a stop, or until it has retired. Failures go to the supervisor, which decides how to continue."""
        try:
            role = self.build_role()
            self._end_if_forked()
        except BaseException as error:  # noqa: BLE001 - the user must see any error of a stage's module or class
            self._end_if_forked(error)
            self._failures.report_build_failure(self._building_stage, error)
            self._wait_for_stop()
            return
        self._send_ready(role)
        upkeep = self._upkeep
        while not self._control.is_stopping:
            try:
                is_entered = self._try_enter_generation(role)
                self._end_if_forked()
                if not is_entered:
                    self._wait_for_command()
                    continue
                while not self.is_interrupted():
                    if self._control.is_retiring and isinstance(role, StageRole) and role.is_idle:
                        self._leave()
                        return
                    role.step()
                    now_ns = perf_counter_ns()
                    if now_ns > upkeep.next_flush_ns or self._memory.lease_count > upkeep.lease_check_threshold:
                        upkeep.flush(now_ns)
            except SeekInterruptError:
                pass
            except Exception as error:  # noqa: BLE001 - of a stage, of the memory, of the transport: all are reported
                self._end_if_forked(error)
                self._sender.flush()  # the items before the failed one
                self._failures.report(self._generation, error)
                self._failed_generation = self._generation  # no more work until the seek that the event requests
            self._region.set_current_key(())
        if isinstance(role, ConcurrentRole):
            role.drain()

    def _leave(self) -> None:
        """Wait until no other process uses this one's memory, and this one uses no other's."""
        self._upkeep.flush(perf_counter_ns())
        for stage in self._stages:
            stage.target = None  # releases the items that it keeps
        self._memory.release_all()
        wait_s = _MIN_LEAVE_WAIT_S
        while not (self._control.is_stopping or self._memory.is_unused):
            self._control.wait(wait_s)
            wait_s = min(2 * wait_s, _COMMAND_WAIT_S)
            self._region[ProcessCounter.HEARTBEAT_NS] = perf_counter_ns()
            self._memory.flush_releases()
            seek = self._find_seek(self._board.generation)
            if seek is not None:  # after a new era, all older blocks belong to the supervisor
                self._generation = seek.generation
                self._upkeep.stale_leases.enter_era(seek.era)
                self._upkeep.stale_leases.report()

    def _end_if_forked(self, error: BaseException | None = None) -> None:
        """End this process if the stages' code has forked it, where the stages themselves do not check."""
        end_if_forked(self._pid, f"worker of {self._spec.plan.name}", error)

    def _send_ready(self, role: WorkerRole) -> None:
        now_ns = perf_counter_ns()
        spec, region = self._spec, self._region
        if self._trace is not None:
            self._trace.add(TraceKind.START, spec.started_ns, now_ns)
        if spec.incarnation:
            region[ProcessCounter.DOWNTIME_NS] += now_ns - spec.started_ns
        else:
            region[ProcessCounter.READY_NS] = now_ns
        region[ProcessCounter.PROCESS_STATE] = ProcessState.RUNNING
        epoch_items = role.declared_items if isinstance(role, SourceRole) else None
        self._control.send(
            ReadyEvent(
                process=spec.process,
                incarnation=spec.incarnation,
                cardinalities=[stage.cardinality for stage in self._stages],
                epoch_items=epoch_items,
                source=role.source_identity if isinstance(role, SourceRole) else None,
            )
        )

    def _try_enter_generation(self, role: WorkerRole) -> bool:
        """Enter the board's current generation. Returns False while its seek is not known yet."""
        seek = self._find_seek(self._board.generation)
        if seek is not None:
            self._generation = seek.generation
            self._region.set_current_key(())
            self._region[ProcessCounter.CURRENT_EPOCH] = seek.epoch
            is_new_era = self._upkeep.stale_leases.enter_era(seek.era)
            for stage in self._stages:
                if seek.rebuild_stateful and stage.plan.stateful:
                    stage.build_target()
                stage.start_epoch(seek.epoch)
            self._upkeep.start_generation(seek)
            role.apply_seek(seek)
            if is_new_era or self._spec.incarnation:
                self._upkeep.stale_leases.report()
        return self._failed_generation < self._generation == self._board.generation

    def _find_seek(self, generation: int) -> Seek | None:
        """Return the seek to enter, if it is known. `generation` is the board's generation."""
        if generation != self._generation:
            data = self._board.read_seek(generation)
            published = None if data is None else decode_command(data)
            if isinstance(published, Seek):
                self._control.update_seek(published)
        seek = self._control.current_seek
        # A successor waits for the seek that follows the death: in an older era its blocks may belong to other
        # processes.
        is_new = seek is not None and seek.generation > self._generation and seek.era >= self._upkeep.stale_leases.era
        return seek if is_new else None

    def _wait_for_stop(self) -> None:
        self._upkeep.flush(perf_counter_ns())
        while not self._control.is_stopping:
            self._control.wait(_COMMAND_WAIT_S)

    def close(self) -> None:
        """Close the stages; write the last counters and the end state to the board."""
        for stage in self._stages:
            stage.close()
        self._upkeep.close()


def limit_opencv_threads(threads: int) -> None:
    """Limit OpenCV's threads: it ignores the environment variables and starts one thread per processor."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(threads)
