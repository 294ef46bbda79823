"""Which part of the source a loader takes: as told, or as `torch.distributed` or the launcher says. Starts nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Self

from torch import distributed

from stagepipe.core import UsageError, warn_user

_FIX = "start the script with torchrun, or pass rank= and world_size= as numbers"


class RankOrigin(Enum):
    """Where the rank of a loader comes from."""

    GIVEN = "given"
    FOUND = "found"
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class RankChoice:
    """The rank of a loader, the number of ranks, and who chose them.

    >>> RankChoice.choose("auto", None, environ={"RANK": "3", "WORLD_SIZE": "4"})
    RankChoice(rank=3, world_size=4, origin=<RankOrigin.FOUND: 'found'>)

    Raises UsageError for another word than `"auto"`, and for variables of a launcher that do not fit together.
    """

    rank: int
    world_size: int
    origin: RankOrigin

    @classmethod
    def choose(
        cls, rank: int | Literal["auto"] | None, world_size: int | None, environ: Mapping[str, str] = os.environ
    ) -> Self:
        """Create it from a loader's arguments; None means that an argument was left out."""
        if isinstance(rank, str):
            _check_auto(rank, world_size)
            return cls(*(find_rank(environ) or (0, 1)), RankOrigin.FOUND)
        origin = RankOrigin.LEFT_OUT if rank is None and world_size is None else RankOrigin.GIVEN
        return cls(0 if rank is None else rank, 1 if world_size is None else world_size, origin)

    def check_world(self, environ: Mapping[str, str] = os.environ) -> None:
        """Compare it with the ranks that train together now: the process group may be younger than the loader.

        Raises UsageError if a rank that was found is another one by now. Warns if it was left out among several ranks.
        """
        found = None
        with contextlib.suppress(UsageError):  # variables that nobody asked to read
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
                f"this process is {now}, and its loader yields all items; if each rank has such a loader, all train on "
                "the same items: pass Loader(config, rank='auto') to take this rank's part, or rank=0, world_size=1 if "
                "all items are wanted"
            )
            warn_user(message, UserWarning)


def find_rank(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Return the rank and the world size of the process group, else of the variables RANK and WORLD_SIZE, else None.

    >>> find_rank({"RANK": "0", "WORLD_SIZE": "2"}), find_rank({})
    ((0, 2), None)

    Raises UsageError, which names the variable, if one of the two is not set, or if they do not fit together.
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    texts = {name: environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if not any(text is not None for text in texts.values()):
        return None
    rank, world_size = (_read_int(name, texts) for name in texts)
    if rank >= world_size:
        raise UsageError(f"rank='auto': {_describe(texts)}, but ranks count from 0 to WORLD_SIZE - 1; {_FIX}")
    return rank, world_size


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
