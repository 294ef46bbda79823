"""A run's workers: starts each in its slot, for the first time or after a death. In the caller's process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import perf_counter_ns

from stagepipe.plan import Plan
from stagepipe.runtime.logs import OutputCollector
from stagepipe.runtime.protocol import WorkerSpec
from stagepipe.runtime.supervisor.run_resources import RunResources, WorkerSlot
from stagepipe.runtime.supervisor.start_hook import WORKER_START_HOOK
from stagepipe.runtime.supervisor.worker_process import WorkerProcess


class WorkerPool:
    """The workers by process index. Each slot has one worker at a time.

    A restarted worker takes over its predecessor's descriptors and counters. Its incarnation is one higher.
    """

    def __init__(self, plan: Plan, resources: RunResources, output_collector: OutputCollector) -> None:
        """Start no worker yet. What workers print and log goes to `output_collector`."""
        self._plan = plan
        self._resources = resources
        self._output_collector = output_collector
        self.workers: dict[int, WorkerProcess] = {}
        self._incarnations: dict[int, int] = {}

    def start_worker(
        self, slot: WorkerSlot, control_socket_fd: int, era: int = 0, died_ns: int | None = None
    ) -> WorkerProcess:
        """Start a worker in the slot. `died_ns`: when its predecessor died, on the clock of `perf_counter_ns`."""
        plan = self._plan
        resources = self._resources
        incarnation = self._incarnations.get(slot.process_index, -1) + 1
        self._incarnations[slot.process_index] = incarnation
        lifetime_read_fd, lifetime_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        worker_spec = WorkerSpec(
            process=slot.process_index,
            worker=slot.worker,
            worker_group=slot.worker_group,
            incarnation=incarnation,
            era=era,
            plan=slot.process_plan,
            outbound=plan.hops[slot.worker_group],
            in_fd=resources.pipes[slot.worker_group - 1].read_fd if slot.worker_group else None,
            out_fd=resources.pipes[slot.worker_group].write_fd,
            arena_fds=resources.get_visible_arena_fds(slot),
            release_fds=resources.get_release_fds(slot),
            segment_processes_by_stage=resources.get_segment_processes_by_stage(slot),
            wake_event_fds=resources.get_wake_event_fds(slot),
            wake_fd=resources.worker_wake_events[slot.process_index].fd,
            board_fd=resources.board_fd,
            layout=resources.board_layout,
            lifetime_fd=lifetime_read_fd,
            control_socket_fd=control_socket_fd,
            memory_bytes=plan.memory_bytes,
            seed=plan.seed,
            any_order=plan.any_order,
            limit=plan.limit,
            shard=plan.shard,
            stage_names=plan.stage_names,
            config_dir=plan.config_dir,
            sys_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
            started_ns=died_ns or perf_counter_ns(),
            keep_idle_pages=plan.keep_idle_pages,
            is_probe=plan.is_probe,
            start_hook=WORKER_START_HOOK.target,
            start_hook_argument=WORKER_START_HOOK.argument,
        )
        try:
            worker = self.workers[slot.process_index] = WorkerProcess(
                slot, worker_spec, lifetime_write_fd, self._output_collector
            )
        finally:
            os.close(lifetime_read_fd)
        return worker

    @property
    def starting_stages(self) -> tuple[str, ...]:
        """The names of the stages that have a worker that is not ready yet."""
        names = [worker.slot.process_plan.name for worker in list(self.workers.values()) if not worker.is_ready]
        return tuple(dict.fromkeys(names))

    def close(self) -> None:
        """Close the descriptors of all workers. Call after their exit."""
        for worker in self.workers.values():
            worker.close()
