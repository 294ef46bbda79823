"""What a worker is given at its start: its part of the plan and its descriptors.

The supervisor writes it to a memfd that only the worker inherits; this, and the hops, are where pickle runs.
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
from stagepipe.timing import Layout

STACKS_SIGNAL = signal.SIGRTMAX - 3
"""Makes a worker write the stacks of all its threads to its last words (see `entry`). One that nobody else uses."""


@dataclass(frozen=True)
class Launch:
    """Everything that one worker of the stages in `plan` needs. Descriptors are inherited under the same numbers."""

    number: int  # of the process: its arena, its region of the board, its name on the control channel
    worker: int
    group: int  # of its stage's processes, and of the hop that they feed
    life: int  # 0 for the first worker at its place, 1 for its successor
    era: int  # in which its blocks begin
    plan: ProcessPlan
    outbound: HopPlan
    in_fd: int | None
    out_fd: int
    arena_fds: Mapping[int, int]
    return_fds: Mapping[int, int]
    fed: tuple[tuple[int, ...], ...]  # by stage, the processes whose arenas hold items of the stretch that it feeds
    bell_fds: Mapping[int, int]  # of the stretches that it feeds or consumes
    ear_fd: int  # rings when there is a seek
    board_fd: int
    layout: Layout
    life_fd: int
    door_fd: int  # of the control channel
    memory_bytes: int
    seed: int
    any_order: bool
    limit: int | None
    shard: Shard
    stages: tuple[str, ...]  # of the whole plan, the source's first
    config_dir: Path | None
    sys_path: tuple[str, ...]
    started_ns: int  # or when the one before it died
    log_level: int = field(default_factory=lambda: logging.getLogger().level)  # of the caller
    keep_pages: bool = False  # of idle blocks: a device has locked them
    probe: bool = False  # tell of the first items that it sends

    @property
    def fds(self) -> list[int]:
        """All descriptors to be inherited."""
        own = [
            self.out_fd,
            self.ear_fd,
            self.board_fd,
            self.life_fd,
            self.door_fd,
            *self.arena_fds.values(),
            *self.return_fds.values(),
        ]
        own += self.bell_fds.values()
        return own if self.in_fd is None else [self.in_fd, *own]


def write_launch(launch: Launch) -> int:
    """A memfd with `launch` in it. Functions of a script or a notebook cell go by value (cloudpickle)."""
    import cloudpickle  # workers, which only read, do without it

    data = cloudpickle.dumps((launch.sys_path, cloudpickle.dumps(launch, protocol=5)), protocol=5)
    fd = os.memfd_create("stagepipe-launch", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read_launch(fd: int) -> tuple[tuple[str, ...], bytes]:
    """The import path to set, and the pickle to load once it is set."""
    with os.fdopen(fd, "rb") as file:
        sys_path, rest = pickle.load(file)
    return sys_path, rest
