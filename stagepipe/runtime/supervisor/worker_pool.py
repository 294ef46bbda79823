"""A run's workers: starts each in its slot, for the first time or after a death. In the caller's process."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter_ns

from stagepipe.core import fork_lock
from stagepipe.plan import Plan
from stagepipe.runtime.logs import OutputCollector
from stagepipe.runtime.protocol import SentPlan, WorkerSpec, pickle_main_objects, send_plan
from stagepipe.runtime.supervisor.process_start import ProcessStarter
from stagepipe.runtime.supervisor.run_resources import RunResources, WorkerSlot
from stagepipe.runtime.supervisor.start_hook import WORKER_START_HOOK
from stagepipe.runtime.supervisor.worker_process import WorkerProcess, terminate_workers


class WorkerPool:
    """The workers by process index. Each slot has one worker at a time.

    A restarted worker takes over its predecessor's descriptors and counters. Its incarnation is one higher.
    """

    def __init__(
        self, plan: Plan, resources: RunResources, control_socket_fd: int, output_collector: OutputCollector
    ) -> None:
        """Start no worker yet. What workers print and log goes to `output_collector`."""
        self._plan = plan
        self._resources = resources
        self._control_socket_fd = control_socket_fd
        self._output_collector = output_collector
        self._starter = ProcessStarter(plan)
        self.workers: dict[int, WorkerProcess] = {}
        self._incarnations: dict[int, int] = {}
        self._main_pickles: Mapping[str, bytes] = {}
        self._sent_plans: dict[int, SentPlan] = {}
        """What the workers of a process plan are sent, by worker group; pickled when the first of them starts."""
        self._lock = threading.Lock()
        self.is_stopping = False

    def start_all(self) -> None:
        """Start the first worker of every slot. If one cannot be started, end the others."""
        self._main_pickles = pickle_main_objects(self._plan)
        self._starter.prepare()
        try:
            for slot in self._resources.slots:
                self._start_worker(slot, 0, perf_counter_ns())
        except BaseException:
            terminate_workers(self.workers.values(), is_stop_requested=False)
            raise
        self._starter.log_spawn_reasons()

    def restart_worker(self, slot: WorkerSlot, era: int, died_ns: int) -> WorkerProcess | None:
        """Start the successor of a worker that died at `died_ns` (`perf_counter_ns`). None once the pool is stopping.

        Raises OSError if it cannot be started.
        """
        self._starter.prepare()
        with self._lock:
            worker = None if self.is_stopping else self._start_worker(slot, era, died_ns)
        self._starter.log_spawn_reasons()
        return worker

    def begin_stop(self) -> bool:
        """Start no more workers from now on. Returns False if that was so already."""
        with self._lock:
            was_stopping = self.is_stopping
            self.is_stopping = True
        return not was_stopping

    def _start_worker(self, slot: WorkerSlot, era: int, started_ns: int) -> WorkerProcess:
        with fork_lock:  # a child that inherits a lifetime pipe must know it
            return self._spawn_worker(slot, era, started_ns)

    def _spawn_worker(self, slot: WorkerSlot, era: int, started_ns: int) -> WorkerProcess:
        plan = self._plan
        resources = self._resources
        incarnation = self._incarnations.get(slot.process_index, -1) + 1
        self._incarnations[slot.process_index] = incarnation
        sent_plan = self._sent_plans.get(slot.worker_group)
        if sent_plan is None:
            sent_plan = self._sent_plans[slot.worker_group] = send_plan(slot.process_plan)
        lifetime_read_fd, lifetime_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        worker_spec = WorkerSpec(
            process=slot.process_index,
            worker=slot.worker,
            worker_group=slot.worker_group,
            incarnation=incarnation,
            era=era,
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
            lifetime_fd=lifetime_read_fd,
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
            started_ns=started_ns,
            keep_idle_pages=plan.keep_idle_pages,
            is_probe=plan.is_probe,
            records_digests=plan.records_digests,
            trace_fd=resources.trace_fds.get(slot.process_index),
            start_hook=WORKER_START_HOOK.target,
            start_hook_argument=WORKER_START_HOOK.argument,
        )
        try:
            worker = self.workers[slot.process_index] = WorkerProcess(
                slot, worker_spec, lifetime_write_fd, self._output_collector, self._starter
            )
        finally:
            os.close(lifetime_read_fd)
        return worker

    def close(self) -> None:
        """Close the descriptors of all workers. Call after their exit."""
        for worker in self.workers.values():
            worker.close()
        while self._sent_plans:
            os.close(self._sent_plans.popitem()[1].fd)
