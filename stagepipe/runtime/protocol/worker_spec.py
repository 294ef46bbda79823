"""What a worker is started with: its part of the plan and its descriptors.

The supervisor writes the spec into a memfd that only the worker inherits. Pickle is used here and on the hops, nowhere
else.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stagepipe.core import WarningFilter, read_warning_filters
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
    """Everything that one worker of the stages in `plan` needs. Descriptors have the caller's numbers."""

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
    reader_processes: tuple[int, ...]  # that read from its hop; none if the consumer does
    wake_event_fds: Mapping[int, int]  # by segment, of those that it feeds or consumes
    wake_fd: int  # of the event that the supervisor sets for a seek
    board_fd: int
    layout: BoardLayout
    lifetime_fd: int
    control_socket_fd: int
    supervisor_pidfd: int
    memory_bytes: int
    seed: int
    any_order: bool
    limit: int | None
    shard: Shard
    stage_names: tuple[str, ...]  # of the whole plan, the source's first
    config_dir: Path | None
    sys_path: tuple[str, ...]
    main_pickles: Mapping[str, bytes]  # of the caller's `__main__`; see `main_objects`
    started_ns: int  # when it was started; for a successor, when the worker before it died
    log_level: int = field(default_factory=lambda: logging.getLogger().level)  # of the caller's root logger
    warning_filters: tuple[WarningFilter, ...] = field(default_factory=read_warning_filters)  # of the caller
    keep_idle_pages: bool = False  # keep the pages of idle blocks, because a device has locked them
    is_probe: bool = False  # send a sample of each of the first items
    trace_fd: int | None = None  # of its trace, in a run that is traced
    records_digests: bool = False  # send a digest of each item
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
            self.supervisor_pidfd,
            *self.arena_fds.values(),
            *self.release_fds.values(),
        ]
        fds += self.wake_event_fds.values()
        return [*fds, *(fd for fd in (self.in_fd, self.trace_fd) if fd is not None)]

    def renumber_fds(self, numbers: Mapping[int, int]) -> WorkerSpec:
        """Return the spec with the descriptors that a forked worker has, by their number in the caller."""
        return replace(
            self,
            in_fd=None if self.in_fd is None else numbers[self.in_fd],
            out_fd=numbers[self.out_fd],
            trace_fd=None if self.trace_fd is None else numbers[self.trace_fd],
            arena_fds={process: numbers[fd] for process, fd in self.arena_fds.items()},
            release_fds={process: numbers[fd] for process, fd in self.release_fds.items()},
            wake_event_fds={segment: numbers[fd] for segment, fd in self.wake_event_fds.items()},
            wake_fd=numbers[self.wake_fd],
            board_fd=numbers[self.board_fd],
            lifetime_fd=numbers[self.lifetime_fd],
            control_socket_fd=numbers[self.control_socket_fd],
            supervisor_pidfd=numbers[self.supervisor_pidfd],
        )


def write_worker_spec(spec: WorkerSpec) -> int:
    """Return a memfd with `spec` in it. Functions of a script or a notebook cell go by value (cloudpickle).

    Raises UsageError, with the stage and the variable, for what cannot be pickled.
    """
    from stagepipe.runtime.protocol.main_objects import dump_with_main_objects  # workers do not need cloudpickle

    try:
        pickled_spec = dump_with_main_objects(spec)
    except Exception as error:
        raise find_unpicklable_stage(spec.plan.stages) or error from error
    data = pickle.dumps((spec.sys_path, pickled_spec), protocol=5)
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


def load_worker_spec(pickled_spec: bytes) -> tuple[WorkerSpec, Mapping[str, Any]]:
    """Return the spec, and by name the classes and functions of the caller's `__main__` that it refers to."""
    unpickler = pickle.Unpickler(io.BytesIO(pickled_spec))
    spec: WorkerSpec = unpickler.load()
    return spec, unpickler.load()
