"""What a worker is started with: its part of the plan and its descriptors.

The supervisor writes the spec into a memfd that only the worker inherits. Pickle is used here and on the hops, nowhere
else.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stagepipe.plan import HopPlan, ProcessPlan, Shard
from stagepipe.runtime.protocol.unpicklable_stage import find_unpicklable_stage
from stagepipe.timing import BoardLayout

BROKEN_CUDA_EXIT_CODE = 86
"""A worker that cannot use CUDA any more exits with it. Arbitrary; shells and signals use codes from 126 on."""
STACK_DUMP_SIGNAL = signal.SIGRTMAX - 3
"""Makes a worker write the stacks of all its threads to its crash log (see `entrypoint`). A real-time
signal, because libraries use the standard ones."""


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """Everything that one worker of the stages in `plan` needs. Descriptors are inherited under the same numbers."""

    process: int  # index of the process: of its arena, its region of the board, its identity on the control channel
    worker: int  # index among the workers of its stage
    worker_group: int  # index of its stage's processes, and of the hop that they feed
    incarnation: int  # 0 for the first worker in its slot, 1 for its successor
    era: int  # of its first blocks
    plan: ProcessPlan
    outbound: HopPlan
    in_fd: int | None  # None for the source
    out_fd: int
    arena_fds: Mapping[int, int]  # by process
    release_fds: Mapping[int, int]  # by process
    segment_processes_by_stage: tuple[tuple[int, ...], ...]  # by stage: whose arenas hold items of the segment it feeds
    wake_event_fds: Mapping[int, int]  # by segment, of those that it feeds or consumes
    wake_fd: int  # of the event that the supervisor sets for a seek
    board_fd: int
    layout: BoardLayout
    lifetime_fd: int
    control_socket_fd: int
    memory_bytes: int
    seed: int
    any_order: bool
    limit: int | None
    shard: Shard
    stage_names: tuple[str, ...]  # of the whole plan, the source's first
    config_dir: Path | None
    sys_path: tuple[str, ...]
    started_ns: int  # when it was started; for a successor, when the worker before it died
    log_level: int = field(default_factory=lambda: logging.getLogger().level)  # of the caller's root logger
    keep_idle_pages: bool = False  # keep the pages of idle blocks, because a device has locked them
    is_probe: bool = False  # send a sample of each of the first items
    start_hook: str | None = None  # "package.module:function", called with the spec at the start; set by tests
    start_hook_argument: str = ""  # for the hook to read

    @property
    def inherited_fds(self) -> list[int]:
        """All descriptors that the worker must inherit."""
        fds = [
            self.out_fd,
            self.wake_fd,
            self.board_fd,
            self.lifetime_fd,
            self.control_socket_fd,
            *self.arena_fds.values(),
            *self.release_fds.values(),
        ]
        fds += self.wake_event_fds.values()
        return fds if self.in_fd is None else [self.in_fd, *fds]


def write_worker_spec(spec: WorkerSpec) -> int:
    """Return a memfd with `spec` in it. Functions of a script or a notebook cell go by value (cloudpickle).

    Raises UsageError, with the stage and the variable, for what cannot be pickled.
    """
    import cloudpickle  # here, because workers only read specs and need not import it

    try:
        pickled_spec = cloudpickle.dumps(spec, protocol=5)
    except Exception as error:
        raise find_unpicklable_stage(spec.plan.stages) or error from error
    data = cloudpickle.dumps((spec.sys_path, pickled_spec), protocol=5)
    fd = os.memfd_create("stagepipe-worker-spec", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read_worker_spec(fd: int) -> tuple[tuple[str, ...], bytes]:
    """Return the import path to set, and the pickled spec to load once it is set."""
    with os.fdopen(fd, "rb") as file:
        sys_path, pickled_spec = pickle.load(file)
    return sys_path, pickled_spec
