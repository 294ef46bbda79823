"""`PartSink`: the interface of sinks that write in several workers. Subclass it to write your own.

`write_part` runs in the sink's workers, everything else in the calling process.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple
from uuid import uuid4

from stagepipe.core import parse_bytes
from stagepipe.sinks.part import Part, PartRecord

_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

OWN_PREFIX: Final = ".stagepipe-"
"""All files of a sink's folder that are not finished shards begin with this: hidden, and ours to delete."""
PART_PREFIX: Final = f"{OWN_PREFIX}part-"
OPEN_PREFIX: Final = f"{OWN_PREFIX}open-"
"""An open shard, which a resume goes on with."""
_DEFAULT_SHARD_BYTES: Final = 256_000_000
_PREFIX_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class PartPlace(NamedTuple):
    """Where a part lies in its shard, in bytes, and how many items it has."""

    offset: int
    size: int
    rows: int


class PartSink(ABC):
    """A sink whose workers write parts: files of consecutive items. The calling process makes shards of the parts.

    Each part is written whole by one worker. The calling process takes the parts in the order of the items: it appends
    them to the open shard if `appends`, otherwise each part is a shard. So the shards are the same for any number of
    workers. `docs/how-to/sinks.md` shows a subclass.

    Args:
        path: the folder of the shards, such as `out`, relative to the current directory; it is created if it is
            missing.
        shard_items: a shard has at most so many items, in whole parts.
        shard_bytes: a shard has at most so many bytes, in whole parts. Default: 256 MB.
        prefix: what the names of the shards begin with: `train-` makes `train-000000.jsonl`.
        overwrite: delete the shards of an earlier run first, and nothing else. Without it, a folder that is not
            empty is refused.
        part_items, part_bytes: a part has at most so many items, and ends when it has so many bytes in memory. They
            hold for all sinks of the pipeline, which share the parts. Default: 1,024 items and 16 MB.

    Raises ValueError for arguments that are out of range.
    """

    writes_parts: ClassVar[bool] = True
    """Tells the planner that the sink has workers. It reads this from the source file, without importing it."""
    appends: ClassVar[bool] = False
    """Whether the files of consecutive parts, one after the other, are a file of the format."""
    extension: ClassVar[str] = ""
    """What the names of the shards end with, such as `.jsonl`."""
    part_multiple: ClassVar[int | str] = 1
    """All parts but the last have a multiple of so many items; or the name of the argument that says how many."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shard_items: int | None = None,
        shard_bytes: int | str = _DEFAULT_SHARD_BYTES,
        prefix: str = "",
        overwrite: bool = False,
        part_items: int | None = None,
        part_bytes: int | str | None = None,
    ) -> None:
        self.path: Final = Path(path)
        self.shard_items: Final = _check_count("shard_items", shard_items)
        self.shard_bytes: Final = _parse_size("shard_bytes", shard_bytes)
        self.prefix: Final = prefix
        self.overwrite: Final = overwrite
        self.part_items: Final = _check_count("part_items", part_items)
        self.part_bytes: Final = None if part_bytes is None else _parse_size("part_bytes", part_bytes)
        self.matches: Callable[[Any], object] | None = None
        """Whether an item is for this sink; None: all are."""
        if prefix and not _PREFIX_PATTERN.fullmatch(prefix):
            raise ValueError(
                f"prefix is {prefix!r}; begin with a letter or digit, and use letters, digits, `.`, `_` and `-`"
            )

    def warm_up(self) -> None:  # noqa: B027 - does nothing unless a subclass needs it
        """Import what `write_part` needs. Called once in each worker, at its start, so that no part waits for it."""

    @abstractmethod
    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write `items`, at least one, to a new file at `path`. Called in a worker.

        After a crash, the same items may be written again, to another file. So the content must depend on them alone.
        """

    def prepare_part(self, path: Path, kept: dict[str, Any]) -> None:  # noqa: B027 - does nothing unless a subclass needs it
        """Check a part, or rewrite its file, before it joins its shard. Called once for each part, in order.

        `kept` is this sink's own: the journal keeps what is put there, as JSON, for the parts that follow.
        """

    def begin_shard(self, file: BinaryIO, kept: Mapping[str, Any]) -> None:  # noqa: B027 - does nothing unless a subclass needs it
        """Write what a shard begins with, before its first part."""

    def finish_shard(self, file: BinaryIO, parts: Sequence[PartPlace], kept: Mapping[str, Any]) -> None:  # noqa: B027 - does nothing unless a subclass needs it
        """Write what completes a shard of these parts. `file` is open for reading and writing, at its end."""

    def name_shard(self, number: int, count: int | None = None) -> str:  # noqa: ARG002 - for a subclass
        """Return the name of a shard, whose number counts from 0. `count`: of all shards; None while it is not known.

        If the names with `count` are others, the shards get them at the end of the job.
        """
        return f"{self.prefix}{number:06d}{self.extension}"

    def owns(self, path: Path) -> bool:  # noqa: ARG002 - for a subclass
        """Whether a run makes such a file or folder besides the numbered ones, so that `overwrite` may delete it."""
        return False

    def list_own(self, recorded_names: Collection[str]) -> list[Path]:
        """Return what `overwrite` deletes: what the journal of the earlier run names, numbered shards, and `owns`.

        A number that is missing ends the shards: `20240101.jsonl` is the user's.
        """
        names = {*recorded_names, *(path.name for path in self.iter_numbered())}
        return [path for path in self.path.iterdir() if path.name in names or self.owns(path)]

    def iter_numbered(self, first: int = 0) -> Iterator[Path]:
        """Yield the shards, or subfolders, from number `first` on, as long as they exist. Not for users."""
        paths = (self.path / self.name_shard(number) for number in itertools.count(first))
        return itertools.takewhile(Path.exists, paths)

    def describe(self, shard_count: int, rows: int, kept: Mapping[str, Any]) -> Mapping[str, bytes]:  # noqa: ARG002 - for a subclass
        """Return the files that describe the whole, by name. Called at the end of the job, when all shards are there.

        After a crash it may be called again.
        """
        return {}

    def __call__(self, part: Part) -> Part:
        """Write a part to its own file, in a worker. The stage that a pipeline runs; not for users."""
        items = self.select_items(part)
        if not items:
            part.add_record(PartRecord(file=None, rows=0, size_bytes=0))
            return part
        path = self.make_part_path()
        try:
            self.write_part(items, path)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            reason = os.strerror(error.errno)
            raise OSError(f"a part cannot be written to {self.path}: {reason}; make room, then --resume") from None
        part.add_record(PartRecord(file=path.name, rows=len(items), size_bytes=_count_bytes(path)))
        return part

    def select_items(self, part: Part) -> Sequence[Any]:
        """Return the items of a part that are for this sink. Not for users."""
        items = part.read_items()
        return items if self.matches is None else [item for item in items if self.matches(item)]

    def make_part_path(self) -> Path:
        """Return a new path: never that of a worker which is still at the same part, before a seek. Not for users."""
        return self.path / f"{PART_PREFIX}{uuid4().hex}"


def _parse_size(name: str, value: int | str) -> int:
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_count(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} is {value!r}; give a whole number of at least 1")
    return value


def _count_bytes(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder."""
    return sum(map(_count_bytes, path.iterdir())) if path.is_dir() else path.stat().st_size
