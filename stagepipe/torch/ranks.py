"""The rank of this process, which determines a loader's part of the source. Starts nothing.

The rank comes from arguments, from `torch.distributed`, or from the launcher's variables.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Self

from torch import distributed

from stagepipe.core import UsageError, warn_user

_FIX = "start the script with torchrun or srun, or pass rank= and world_size= as numbers"


class RankOrigin(Enum):
    """The origin of a loader's rank."""

    GIVEN = "given"
    FOUND = "found"
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class RankChoice:
    """The rank of a loader, the number of ranks, and their origin.

    >>> RankChoice.choose("auto", None, environ={"RANK": "3", "WORLD_SIZE": "4"})
    RankChoice(rank=3, world_size=4, origin=<RankOrigin.FOUND: 'found'>)

    Raises UsageError for a string other than `"auto"`, and for inconsistent variables of a launcher.
    """

    rank: int
    world_size: int
    origin: RankOrigin

    @classmethod
    def choose(
        cls, rank: int | Literal["auto"] | None, world_size: int | None, environ: Mapping[str, str] = os.environ
    ) -> Self:
        """Create it from a loader's arguments. None means that an argument was left out."""
        if isinstance(rank, str):
            _check_auto(rank, world_size)
            return cls(*(find_rank(environ) or (0, 1)), RankOrigin.FOUND)
        origin = RankOrigin.LEFT_OUT if rank is None and world_size is None else RankOrigin.GIVEN
        return cls(0 if rank is None else rank, 1 if world_size is None else world_size, origin)

    def check_world(self, environ: Mapping[str, str] = os.environ) -> None:
        """Compare the choice with the current process group, which may be newer than the loader.

        Raises UsageError if a found rank has changed. Warns if the rank was left out and there are several ranks.
        """
        found = None
        with contextlib.suppress(UsageError):  # wrong variables do not matter if no rank was requested
            found = find_rank(environ)
        if found is None:
            return
        now = f"rank {found[0]} of {found[1]}"
        if self.origin is RankOrigin.FOUND and found != (self.rank, self.world_size):
            raise UsageError(
                f"rank='auto' found rank {self.rank} of {self.world_size} when the loader was made, but this process "
                f"is {now} now; make the loader after torch.distributed.init_process_group"
            )
        if self.origin is RankOrigin.LEFT_OUT and found[1] > 1:
            message = (
                f"this process is {now}, and its loader yields all items; if every rank does this, all train on the "
                "same items: pass Loader(config, rank='auto') to take this rank's part, or rank=0, world_size=1 if "
                "all items are wanted"
            )
            warn_user(message, UserWarning)


def find_rank(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Return rank and world size of the process group, or else from RANK and WORLD_SIZE, or else from Slurm, or None.

    >>> find_rank({"RANK": "0", "WORLD_SIZE": "2"}), find_rank({})
    ((0, 2), None)
    >>> find_rank({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"})
    (1, 2)

    Raises UsageError, which names the variable, if only one of the two is set, or if they are inconsistent.
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for names in (("RANK", "WORLD_SIZE"), _get_slurm_names(environ)):
        texts = {name: environ.get(name) for name in names}
        if any(text is not None for text in texts.values()):
            rank, world_size = (_read_int(name, texts) for name in texts)
            if rank >= world_size:
                raise UsageError(f"rank='auto': {_describe(texts)}, but ranks count from 0 to {names[1]} - 1; {_FIX}")
            return rank, world_size
    return None


def _get_slurm_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variable names of a task that `srun` started, or none for other processes of a job.

    The script of `sbatch`, and its children without `srun`, also have `SLURM_PROCID=0` and the job's `SLURM_NTASKS`.
    They are no task of a step. Processes that `mpirun` starts on several nodes have variables of `mpirun`'s own step.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS")
    sizes = {environ.get(name, tasks) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")}
    return ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS") if tasks is not None and sizes == {tasks} else ()


def _check_auto(rank: str, world_size: int | None) -> None:
    if rank != "auto":
        raise UsageError(f"rank={rank!r}; give a number, 'auto' (as torch.distributed or torchrun says), or None")
    if world_size is not None:
        raise UsageError(
            f"rank='auto' finds the world size too; remove world_size={world_size!r}, or pass the rank as a number"
        )


def _read_int(name: str, texts: Mapping[str, str | None]) -> int:
    text = texts[name]
    if text is None:
        raise UsageError(f"rank='auto': {_describe(texts)}, but {name} is not set; {_FIX}")
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"rank='auto': {_describe(texts)}, but {name} must be a whole number from 0 on; {_FIX}")
    return int(text)


def _describe(texts: Mapping[str, str | None]) -> str:
    given = " and ".join(f"{name}={text!r}" for name, text in texts.items() if text is not None)
    return f"the environment has {given}"


_RUN_ID_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
"""Variables of `torchrun` that are equal on all ranks of a run; together they identify the run."""
_UNSET_VARIABLE_MESSAGE = (
    "share='node' needs the ranks of this machine, and {name} is not set; start the script with torchrun, or pass "
    "local_rank= and local_world_size= (with several machines also rank= and world_size=)"
)


@dataclass(frozen=True, kw_only=True)
class RankTopology:
    """The place of this process among all ranks. `run_identity` is equal on all ranks of a run, and unique to the run.

    >>> topology = RankTopology(rank=5, world_size=8, local_rank=1, local_world_size=4)
    >>> topology.node_rank, topology.node_count
    (1, 2)

    Raises UsageError for inconsistent numbers.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    run_identity: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that the numbers are consistent."""
        numbers = (self.rank, self.world_size, self.local_rank, self.local_world_size)
        if not (0 <= self.local_rank < self.local_world_size and 0 <= self.rank < self.world_size):
            raise UsageError(f"{_format_ranks(numbers)}: ranks count from 0 to world_size - 1")
        if self.world_size % self.local_world_size or self.rank % self.local_world_size != self.local_rank:
            raise UsageError(
                f"{_format_ranks(numbers)}: share='node' needs the same number of ranks on each machine, and machine m "
                "must have the ranks from m * local_world_size on, as torchrun assigns them"
            )

    @classmethod
    def from_environment(
        cls,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int | None = None,
        local_world_size: int | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Create it from the arguments, and from the environment for arguments that are left out.

        >>> environ = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "3", "WORLD_SIZE": "4"}
        >>> RankTopology.from_environment(environ=environ).node_rank
        1
        """
        is_size_given = local_world_size is not None
        if local_rank is None:
            local_rank = _read_number(environ, "LOCAL_RANK")
        if local_world_size is None:
            local_world_size = _read_number(environ, "LOCAL_WORLD_SIZE")
        if (rank, world_size) == (0, 1):
            is_single_node = is_size_given or "WORLD_SIZE" not in environ
            rank = local_rank if is_single_node else _read_number(environ, "RANK")
            world_size = local_world_size if is_single_node else _read_number(environ, "WORLD_SIZE")
        run_identity = tuple(environ.get(name, "") for name in _RUN_ID_VARIABLES)
        if not any(run_identity):
            # Without a launcher, the ranks share at least their parent process, as with multiprocessing's spawn.
            run_identity = (f"child of {os.getppid()}",)
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=local_world_size,
            run_identity=run_identity,
        )

    @property
    def node_rank(self) -> int:
        """The number of this machine, counted from 0."""
        return self.rank // self.local_world_size

    @property
    def node_count(self) -> int:
        """The number of machines."""
        return self.world_size // self.local_world_size

    @property
    def leader_rank(self) -> int:
        """The rank that owns this machine's pipeline."""
        return self.node_rank * self.local_world_size


def _read_number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None:
        raise UsageError(_UNSET_VARIABLE_MESSAGE.format(name=name))
    if not text.isdecimal():
        raise UsageError(
            f"the environment variable {name}={text!r} is not a whole number from 0 on; start with torchrun"
        )
    return int(text)


def _format_ranks(numbers: tuple[int, ...]) -> str:
    names = ("rank", "world_size", "local_rank", "local_world_size")
    return ", ".join(f"{name}={number!r}" for name, number in zip(names, numbers, strict=True))
