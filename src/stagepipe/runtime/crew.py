"""A run's workers: started at their places, for the first time or after a death. In the supervisor's process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import perf_counter_ns

from stagepipe.plan import Plan
from stagepipe.runtime.launch import Launch
from stagepipe.runtime.output import Output
from stagepipe.runtime.process import WorkerProcess
from stagepipe.runtime.resources import Resources, WorkerPlace


class Crew:
    """The workers by their numbers. At each place one runs at a time; a successor takes over all but its life."""

    def __init__(self, plan: Plan, resources: Resources, output: Output) -> None:
        """Nobody is started yet; what they will print and log goes to `output`."""
        self._plan, self._resources, self._output = plan, resources, output
        self.workers: dict[int, WorkerProcess] = {}
        self._lives: dict[int, int] = {}

    def start(self, place: WorkerPlace, door_fd: int, era: int = 0, since_ns: int | None = None) -> WorkerProcess:
        """Start a worker there; `since_ns`: when the one before it died."""
        resources, plan = self._resources, self._plan
        life = self._lives[place.number] = self._lives.get(place.number, -1) + 1
        life_read_fd, life_write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        launch = Launch(
            number=place.number,
            worker=place.worker,
            group=place.group,
            life=life,
            era=era,
            plan=place.plan,
            outbound=plan.hops[place.group],
            in_fd=resources.pipes[place.group - 1].read_fd if place.group else None,
            out_fd=resources.pipes[place.group].write_fd,
            arena_fds=resources.arena_fds(place),
            return_fds=resources.return_fds(place),
            fed=resources.fed_by(place),
            bell_fds=resources.bell_fds(place),
            ear_fd=resources.ears[place.number].fd,
            board_fd=resources.board_fd,
            layout=resources.layout,
            life_fd=life_read_fd,
            door_fd=door_fd,
            memory_bytes=plan.memory_bytes,
            seed=plan.seed,
            any_order=plan.any_order,
            limit=plan.limit,
            shard=plan.shard,
            stages=plan.stage_names,
            config_dir=plan.config_dir,
            sys_path=tuple(entry or str(Path.cwd()) for entry in sys.path),
            started_ns=since_ns or perf_counter_ns(),
            keep_pages=plan.keep_pages,
            probe=plan.probe,
        )
        try:
            worker = self.workers[place.number] = WorkerProcess(place, launch, life_write_fd, self._output)
        finally:
            os.close(life_read_fd)
        return worker

    @property
    def starting(self) -> tuple[str, ...]:
        """The stages of which a worker is not ready yet."""
        names = [worker.place.plan.name for worker in list(self.workers.values()) if not worker.ready]
        return tuple(dict.fromkeys(names))

    def close(self) -> None:
        """Give back what each of them took; they have ended."""
        for worker in self.workers.values():
            worker.close()
