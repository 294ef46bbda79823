"""Which rank of which machine this process is: from the arguments, or from what `torchrun` sets. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from stagepipe.core import UsageError

_RUN = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
"""What `torchrun` gives all ranks of a run alike: together they name it."""
_UNKNOWN = (
    "share='node' has to know the ranks of this machine, and {name} is not set; start the script with torchrun, or "
    "pass local_rank= and local_world_size= (and rank= and world_size=, where there are several machines)"
)


@dataclass(frozen=True)
class World:
    """This process among all ranks. `run` is what all ranks of a machine have alike and no other run has.

    >>> world = World(rank=5, world_size=8, local_rank=1, local_world_size=4)
    >>> world.machine, world.machines
    (1, 2)

    Raises UsageError for numbers that do not go together.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    run: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        numbers = (self.rank, self.world_size, self.local_rank, self.local_world_size)
        if not (0 <= self.local_rank < self.local_world_size and 0 <= self.rank < self.world_size):
            message = f"{_said(numbers)}: ranks count from 0 to the world's size - 1"
            raise UsageError(message)
        if self.world_size % self.local_world_size or self.rank % self.local_world_size != self.local_rank:
            message = (
                f"{_said(numbers)}: share='node' wants the same number of ranks on each machine, and machine m to have "
                "the ranks from m * local_world_size on, as torchrun gives them out"
            )
            raise UsageError(message)

    @classmethod
    def of(
        cls,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int | None = None,
        local_world_size: int | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """From the arguments; those that were left out from the environment.

        >>> World.of(environ={"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "3", "WORLD_SIZE": "4"}).machine
        1
        """
        given = local_world_size is not None
        if local_rank is None:
            local_rank = _number(environ, "LOCAL_RANK")
        if local_world_size is None:
            local_world_size = _number(environ, "LOCAL_WORLD_SIZE")
        if (rank, world_size) == (0, 1):
            alone = given or "WORLD_SIZE" not in environ
            rank = local_rank if alone else _number(environ, "RANK")
            world_size = local_world_size if alone else _number(environ, "WORLD_SIZE")
        run = tuple(environ.get(name, "") for name in _RUN)
        # Without a launcher's names the ranks have at least their parent in common: multiprocessing's spawn.
        return cls(rank, world_size, local_rank, local_world_size, run if any(run) else (f"child of {os.getppid()}",))

    @property
    def machine(self) -> int:
        """Which of the machines this is, from 0."""
        return self.rank // self.local_world_size

    @property
    def machines(self) -> int:
        """How many there are."""
        return self.world_size // self.local_world_size

    @property
    def first_rank(self) -> int:
        """The rank that owns this machine's pipeline."""
        return self.machine * self.local_world_size


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None:
        raise UsageError(_UNKNOWN.format(name=name))
    if not text.isdecimal():
        message = f"the environment has {name}={text!r}, which is no whole number from 0 on; start with torchrun"
        raise UsageError(message)
    return int(text)


def _said(numbers: tuple[int, ...]) -> str:
    names = ("rank", "world_size", "local_rank", "local_world_size")
    return ", ".join(f"{name}={number!r}" for name, number in zip(names, numbers, strict=True))
