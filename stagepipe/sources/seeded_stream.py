"""`SeededStream`: a stream of our own, whose items depend on seed and epoch. Runs in the source's process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any


class SeededStream(ABC):
    """A stream that is told seed and epoch before it is read."""

    @abstractmethod
    def begin(self, epoch: int, seed: int) -> None:
        """Start an epoch: the next iteration reads its items, from the start."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...


def begin_stream(stream: Any, epoch: int, seed: int) -> None:
    """Start an epoch of any stream. If it has `set_epoch`, call that, as a training loop does."""
    if isinstance(stream, SeededStream):
        stream.begin(epoch, seed)
        return
    set_epoch = getattr(stream, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
