"""Stages for a `group`: ranks of torch.distributed on gloo, and ranks that fail in their own ways."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import stagepipe


class Gathered:
    """Returns what all ranks have seen of an item: their rank, the item, and a number that each has drawn."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def __call__(self, item: Any) -> Any:
        own = (self.rank, item, float(torch.rand(())), float(stagepipe.context().rng.random()))
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, own)
        return every if self.rank == 0 else None


class Summed(Gathered):
    """All-reduces `item * (rank + 1)`: the item times 1 + 2 + ... + size."""

    def __call__(self, item: int) -> Any:
        total = torch.tensor([float(item) * (self.rank + 1)])
        self.act(item)
        dist.all_reduce(total)
        return item, float(total)

    def act(self, item: int) -> None:
        """Do nothing."""


class Failing(Summed):
    """Raises in one rank, or all (-1), at one item, before the others can meet it in the collective."""

    def __init__(self, at: int, rank: int, mark: str = "") -> None:
        self.at = at
        self.failing_rank = rank
        self.mark = Path(mark)
        super().__init__()

    def act(self, item: int) -> None:
        if item == self.at and self.failing_rank in {-1, self.rank} and not (self.mark.name and self.mark.exists()):
            if self.mark.name:
                self.mark.touch()
            raise ValueError(f"no layer for {item}")


class Late(Failing):
    """Raises after the collective."""

    def __call__(self, item: int) -> Any:
        total = torch.tensor([float(item) * (self.rank + 1)])
        dist.all_reduce(total)
        self.act(item)
        return item, float(total)


class Killed(Failing):
    """Sends a signal to itself in one rank, at one item, the first time or each time."""

    def __init__(self, at: int, rank: int, mark: str = "", number: int = signal.SIGKILL) -> None:
        self.number = number
        super().__init__(at, rank, mark)

    def act(self, item: int) -> None:
        try:
            super().act(item)
        except ValueError:
            os.kill(os.getpid(), self.number)


class Hanging(Failing):
    """Sleeps in one rank, at one item."""

    def act(self, item: int) -> None:
        try:
            super().act(item)
        except ValueError:
            time.sleep(1000)


class Unbuildable(Summed):
    """Raises in the constructor of rank 1, before or after the others wait for it."""

    def __init__(self, *, joins: bool) -> None:
        if joins:
            super().__init__()
        if os.environ["RANK"] == "1":
            raise OSError("no weights for this rank")
        if not joins:
            super().__init__()


class Sizes(Gathered):
    """Returns, for an array, what each rank sees of it: its sum, and whether it can be written to."""

    def __call__(self, item: Any) -> Any:
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, (float(item["image"].sum()), item["image"].flags.writeable))
        return every


class Recorded(Summed):
    """Writes its process's number and its thread count into a folder, once it is built."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        Path(folder, f"{os.getpid()}").write_text(f"{self.rank} {torch.get_num_threads()} {os.environ['MASTER_PORT']}")


class Counting(Summed):
    """Keeps state: a count of the items so far, in each rank. It may be built twice in a process."""

    def __init__(self) -> None:
        self.count = 0
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def __call__(self, item: int) -> Any:
        self.count += 1
        total = torch.tensor([float(self.count)])
        dist.all_reduce(total)
        return item, float(total)


class Listed(Summed):
    """Takes lists: returns the number of each item in its list, and what all ranks have seen together."""

    def __call__(self, items: list[int]) -> Any:
        total = torch.tensor([float(sum(items))])
        dist.all_reduce(total)
        return [(item, float(total)) for item in items] if self.rank == 0 else None
