"""`SeededStream`: a stream of our own, whose items depend on seed and epoch. And what any stream tells of itself.

Runs in the source's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

from stagepipe.core import SourceFiles

FILES_ATTRIBUTE: Final = "_stagepipe_files"
"""Where a source leaves the `SourceFiles` of a stream whose class is another library's."""


class SeededStream(ABC):
    """A stream that is told seed and epoch before it is read."""

    @abstractmethod
    def begin(self, epoch: int, seed: int) -> None:
        """Start an epoch: the next iteration reads its items, from the start."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def describe_files(self) -> SourceFiles | None:
        """Return what identifies the files, for the states of a run; None if that is not known."""
        return None


def begin_stream(stream: Any, epoch: int, seed: int) -> None:
    """Start an epoch of any stream. If it has `set_epoch`, call that, as a training loop does."""
    if isinstance(stream, SeededStream):
        stream.begin(epoch, seed)
        return
    set_epoch = getattr(stream, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def describe_stream_files(stream: Any) -> SourceFiles | None:
    """Return what identifies the files of a stream, if it is one of our own; None if that is not known."""
    files: SourceFiles | None = getattr(stream, FILES_ATTRIBUTE, None)
    if files is None and isinstance(stream, SeededStream):
        return stream.describe_files()
    return files
