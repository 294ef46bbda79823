"""Starts a worker's process: forked by the fork server, or spawned with an interpreter of its own.

In the caller's process.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from functools import lru_cache
from typing import Final

from stagepipe.core import PACKAGE_DIR
from stagepipe.runtime.fork_server import ForkedProcess, SpawnNeededError, fork_process
from stagepipe.runtime.protocol import WorkerSpec, write_worker_spec

_log = logging.getLogger("stagepipe")
_THREAD_COUNT_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_MALLOC_VARIABLES: Final = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""mallopt(3): by default glibc returns the pages of a freed array to the kernel, and the next array of that size faults
them in again. Stages make arrays of the same sizes again and again: decoding JPEG files took 87 page faults per item,
and a tenth more time."""

StartedProcess = ForkedProcess | subprocess.Popen[bytes]


def start_process(worker_spec: WorkerSpec, crash_log_fd: int, output_fd: int) -> StartedProcess:
    """Start the process of a worker. Raises OSError where the system refuses."""
    spec_fd = write_worker_spec(worker_spec)
    try:
        if worker_spec.start == "fork":
            try:
                return _fork(worker_spec, spec_fd, crash_log_fd, output_fd)
            except SpawnNeededError as reason:
                _log_spawn(worker_spec.plan.name, str(reason))
                os.lseek(spec_fd, 0, os.SEEK_SET)
        return _spawn(worker_spec, spec_fd, crash_log_fd, output_fd)
    finally:
        os.close(spec_fd)


def _fork(worker_spec: WorkerSpec, spec_fd: int, crash_log_fd: int, output_fd: int) -> ForkedProcess:
    named_fds = {
        "spec": spec_fd,
        "crash_log": crash_log_fd,
        "lifetime": worker_spec.lifetime_fd,
        "output": output_fd,
    }
    threads = worker_spec.plan.first_stage.threads or 1
    environment = _make_environment(worker_spec)
    return fork_process(worker_spec.preload, environment, named_fds, worker_spec.inherited_fds, threads)


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
    thread_count = str(worker_spec.plan.first_stage.threads or 1)
    package_parent = str(PACKAGE_DIR.parent)
    inherited_path = os.environ.get("PYTHONPATH")
    path = package_parent if not inherited_path else f"{inherited_path}{os.pathsep}{package_parent}"
    return {
        **_MALLOC_VARIABLES,
        **os.environ,
        **dict.fromkeys(_THREAD_COUNT_VARIABLES, thread_count),
        "PYTHONPATH": path,
        **(
            {}
            if worker_spec.plan.visible_devices is None
            else {"CUDA_VISIBLE_DEVICES": worker_spec.plan.visible_devices[worker_spec.worker]}
        ),
        **worker_spec.plan.first_stage.env,
    }
