"""Starts a worker's process: forked by the fork server, or spawned with an interpreter of its own.

In the caller's process.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from functools import lru_cache

from stagepipe.plan import Plan
from stagepipe.runtime.fork_server import (
    ForkedProcess,
    ForkServer,
    SpawnNeededError,
    find_preload,
    fork_process,
    get_fork_server,
    make_worker_environment,
)
from stagepipe.runtime.protocol import WorkerSpec, write_worker_spec

_log = logging.getLogger("stagepipe")
StartedProcess = ForkedProcess | subprocess.Popen[bytes]


class ProcessStarter:
    """Starts the processes of a plan's workers."""

    def __init__(self, plan: Plan) -> None:
        """Start no process yet."""
        self._is_forking = plan.start == "fork"
        self._preload = find_preload(plan)
        self._fork_server: ForkServer | None = None
        self._spawn_reasons: list[tuple[str, str]] = []

    def prepare(self) -> None:
        """Wait until there is a fork server, if one is used. Hold no lock: a fork of this process need not wait."""
        if self._is_forking:
            self._fork_server = get_fork_server(self._preload)

    def log_spawn_reasons(self) -> None:
        """Log why workers were spawned. Hold no lock: a handler may fork, and a fork waits for locks."""
        while self._spawn_reasons:
            _log_spawn(*self._spawn_reasons.pop())

    def start(self, worker_spec: WorkerSpec, crash_log_fd: int, output_fd: int) -> StartedProcess:
        """Start the process of a worker. Neither waits nor logs. Raises OSError where the system refuses."""
        spec_fd = write_worker_spec(worker_spec)
        try:
            if self._fork_server is not None:
                try:
                    return _fork(self._fork_server, worker_spec, spec_fd, crash_log_fd, output_fd)
                except SpawnNeededError as reason:
                    self._spawn_reasons.append((worker_spec.plan.name, str(reason)))
            return _spawn(worker_spec, spec_fd, crash_log_fd, output_fd)
        finally:
            os.close(spec_fd)


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
    _log.info("%s starts with an interpreter of its own, which takes longer than a fork: %s", stage, reason)


def _make_environment(worker_spec: WorkerSpec) -> dict[str, str]:
    plan = worker_spec.plan
    devices = plan.visible_devices
    visible = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices[worker_spec.worker]}
    return make_worker_environment(plan.first_stage.threads or 1, {**visible, **plan.first_stage.env})
