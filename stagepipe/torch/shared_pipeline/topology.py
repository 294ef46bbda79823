"""Which rank of which machine this process is: from arguments, or from the variables of `torchrun`. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from stagepipe.core import UsageError

_RUN_ID_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
"""Variables of `torchrun` that are equal on all ranks of a run; together they identify the run."""
_UNSET_VARIABLE_MESSAGE = (
    "share='node' needs the ranks of this machine, and {name} is not set; start the script with torchrun, or pass "
    "local_rank= and local_world_size= (with several machines also rank= and world_size=)"
)


@dataclass(frozen=True, kw_only=True)
class RankTopology:
    """This process among all ranks. `run_identity` is equal on all ranks of a run and different in every other run.

    >>> topology = RankTopology(rank=5, world_size=8, local_rank=1, local_world_size=4)
    >>> topology.node_rank, topology.node_count
    (1, 2)

    Raises UsageError for numbers that do not fit together.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    run_identity: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that the numbers fit together."""
        numbers = (self.rank, self.world_size, self.local_rank, self.local_world_size)
        if not (0 <= self.local_rank < self.local_world_size and 0 <= self.rank < self.world_size):
            message = f"{_format_ranks(numbers)}: ranks count from 0 to world_size - 1"
            raise UsageError(message)
        if self.world_size % self.local_world_size or self.rank % self.local_world_size != self.local_rank:
            message = (
                f"{_format_ranks(numbers)}: share='node' needs the same number of ranks on each machine, and machine m "
                "must have the ranks from m * local_world_size on, as torchrun assigns them"
            )
            raise UsageError(message)

    @classmethod
    def from_environment(
        cls,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int | None = None,
        local_world_size: int | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Create it from the arguments, and from the environment where they are left out.

        >>> environ = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "3", "WORLD_SIZE": "4"}
        >>> RankTopology.from_environment(environ=environ).node_rank
        1
        """
        is_size_given = local_world_size is not None
        if local_rank is None:
            local_rank = _read_int(environ, "LOCAL_RANK")
        if local_world_size is None:
            local_world_size = _read_int(environ, "LOCAL_WORLD_SIZE")
        if (rank, world_size) == (0, 1):
            is_single_node = is_size_given or "WORLD_SIZE" not in environ
            rank = local_rank if is_single_node else _read_int(environ, "RANK")
            world_size = local_world_size if is_single_node else _read_int(environ, "WORLD_SIZE")
        run_identity = tuple(environ.get(name, "") for name in _RUN_ID_VARIABLES)
        if not any(run_identity):
            # Without a launcher the ranks share at least their parent process, as with multiprocessing's spawn.
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


def _read_int(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None:
        raise UsageError(_UNSET_VARIABLE_MESSAGE.format(name=name))
    if not text.isdecimal():
        message = f"the environment variable {name}={text!r} is not a whole number from 0 on; start with torchrun"
        raise UsageError(message)
    return int(text)


def _format_ranks(numbers: tuple[int, ...]) -> str:
    names = ("rank", "world_size", "local_rank", "local_world_size")
    return ", ".join(f"{name}={number!r}" for name, number in zip(names, numbers, strict=True))
