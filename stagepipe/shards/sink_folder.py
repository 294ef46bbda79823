"""`SinkFolder`: the folder of one sink. What shards and file trees have in common.

Nothing is durable, and no file has its final name, before `commit`. The journal holds the position of the last commit,
and `restore` brings the folder back to it.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final

from stagepipe.core import RunError, UsageError
from stagepipe.shards.durability import make_folder, sync_file, sync_folder
from stagepipe.shards.journal import JOURNAL_NAME
from stagepipe.shards.locking import FolderLock
from stagepipe.shards.position import FinishedShard, ShardPosition
from stagepipe.sinks import OPEN_PREFIX, OWN_PREFIX, PART_PREFIX, PartRecord, PartSink

_DESCRIPTION_NAME: Final = f"{PART_PREFIX}description"
_PATH_ARGUMENTS: Final = frozenset({"path", "glob"})
"""What the built-in sources call the paths and patterns of their files."""


class SinkFolder(ABC):
    """The folder of one sink. One run at a time uses it."""

    temporary_prefixes: ClassVar[tuple[str, ...]] = (PART_PREFIX,)
    """What the names of files begin with that a resume may delete."""

    def __init__(self, sink: PartSink, name: str) -> None:
        """Create the folder if it is missing, and lock it. `name` is the sink's, for messages.

        Raises UsageError if another run uses the folder, or it cannot be written.
        """
        self._sink = sink
        self._name = name
        self.path: Final = sink.path
        try:
            make_folder(self.path)
        except OSError as error:
            raise UsageError(
                f"sink {name}: the folder {self.path} cannot be created: {error.strerror}; set another `path`"
            ) from error
        self._lock = FolderLock(self.path)
        self._kept: dict[str, Any] = {}
        self._recorded_kept: dict[str, Any] | None = None
        self.rows_written = 0
        """Rows of all parts, those of earlier runs of the same job included."""
        self._has_new_names = False

    def is_unused(self) -> bool:
        """Whether the folder has nothing but a journal, and what killed workers left."""
        return all(
            path.name == JOURNAL_NAME or not _is_kept_without_overwrite(path.name) for path in self._iter_paths()
        )

    def require_empty(self) -> None:
        """Raise UsageError if the folder has files, or is a job's that did not end, unless the sink has `overwrite`."""
        foreign_name = next((path.name for path in self._iter_paths() if _is_kept_without_overwrite(path.name)), None)
        if foreign_name is not None and not self._sink.overwrite:
            raise UsageError(
                f"sink {self._name}: the folder {self.path.absolute()} is not empty (it has {foreign_name}), and this "
                "run has no journal to resume; set another `path`, or `overwrite: true` to delete the shards in it"
            )

    @abstractmethod
    def require_own(self, recorded_names: Collection[str]) -> None:
        """Raise UsageError if `start` would find a folder of the user's in the place of a shard."""

    def require_unread(self, recorded_names: Collection[str], source_arguments: Mapping[Any, Any]) -> None:
        """Raise UsageError if `start` would delete files that a source with these arguments reads.

        The arguments may hold those of nested sources. What a dataset of the user's reads is not known.
        """
        patterns = [_split_path(text) for text in _iter_paths(source_arguments)]
        for path in self._sink.list_own(recorded_names) if patterns else ():
            if any(_reads(pattern, _split_path(path), is_folder=path.is_dir()) for pattern in patterns):
                raise UsageError(
                    f"sink {self._name}: `overwrite` would delete {path.absolute()}, which the source reads; set "
                    "another `path`"
                )

    def start(self, recorded_names: Collection[str]) -> None:
        """Start a new job. `recorded_names`: what the journals of earlier runs name, which goes too."""
        paths = [path for path in self._iter_paths() if self._is_temporary(path) or path.name == JOURNAL_NAME]
        paths += self._sink.list_own(recorded_names)
        self._delete(sorted(paths, reverse=True))  # the last shard first: a kill leaves no gap
        for folder in {path.parent for path in paths} - {self.path}:
            with suppress(OSError):  # a file of the user's is in it
                folder.rmdir()

    @abstractmethod
    def restore(self, position: ShardPosition, finished: Iterable[FinishedShard]) -> None:
        """Bring the folder back to `position`. Raises UsageError if a shard is missing or was changed."""

    @abstractmethod
    def require_whole(self, position: ShardPosition, finished: Iterable[FinishedShard]) -> None:
        """Raise UsageError if a shard of a finished job is missing or was changed. `position` is its last."""

    @abstractmethod
    def add(self, record: PartRecord) -> None:
        """Add the next part."""

    @abstractmethod
    def finish(self) -> None:
        """Finish what is open: the job has no more parts. Delete what workers left that were killed."""

    def complete(self) -> None:
        """Write what describes the whole, after the journal has recorded its last part. May be called again.

        Raises RunError if the disk is full, or a file is missing.
        """
        try:
            with self._explain_write_errors():
                self._complete()
        except ValueError as error:
            raise RunError(f"sink {self._name}: {error}") from error

    def _complete(self) -> None:
        partial_path = self.path / _DESCRIPTION_NAME
        description = self._sink.describe(self._count_shards(), self.rows_written, self._kept)
        for name, content in description.items():
            partial_path.write_bytes(content)
            sync_file(partial_path)
            path = self.path / name
            make_folder(path.parent)
            partial_path.replace(path)
            sync_folder(path.parent)

    def count_files(self) -> int:
        """Return how many files of data the job has written."""
        return self._count_shards()

    def _count_shards(self) -> int:
        return 0

    def commit(self) -> tuple[ShardPosition, list[FinishedShard]]:
        """Make all parts so far durable, under their final names. Returns what the journal records.

        It may be interrupted anywhere and called again. `mark_recorded` ends the commit. Raises RunError if the disk is
        full.
        """
        with self._explain_write_errors():
            return self._commit()

    @abstractmethod
    def _commit(self) -> tuple[ShardPosition, list[FinishedShard]]:
        """Do what `commit` says."""

    @contextmanager
    def _explain_write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"sink {self._name}: the files in {self.path} cannot be written: {error.strerror}; make room, then "
                "--resume"
            ) from error

    def mark_recorded(self) -> None:
        """The journal has recorded the last commit."""
        self._recorded_kept = dict(self._kept)

    def close(self) -> None:
        """Release the folder."""
        self._lock.release()

    # ------------------------------------------------------------------ for subclasses

    def _restore_kept(self, position: ShardPosition) -> None:
        self._kept = dict(position.kept or {})
        self._recorded_kept = dict(self._kept)
        self.rows_written = position.rows_written

    def _get_unrecorded_kept(self) -> dict[str, Any] | None:
        return None if self._kept == self._recorded_kept else dict(self._kept)

    def _iter_paths(self) -> list[Path]:
        return [Path(entry.path) for entry in os.scandir(self.path)]

    def _is_temporary(self, path: Path) -> bool:
        """Whether it is a run's, but neither the lock nor the journal nor under its final name."""
        return path.name.startswith(self.temporary_prefixes)

    def _delete(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            self._has_new_names = True


def _is_kept_without_overwrite(name: str) -> bool:
    """Whether it is the user's or another job's, and no mere leftover of a killed worker."""
    return not name.startswith(OWN_PREFIX) or name == JOURNAL_NAME or name.startswith(OPEN_PREFIX)


def _iter_paths(value: Any, *, is_path: bool = False) -> Iterator[str]:
    """Yield the local paths and patterns in the arguments of a source."""
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if is_path and isinstance(text, str) and "://" not in text:
            yield text
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _iter_paths(inner, is_path=is_path or key in _PATH_ARGUMENTS)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _iter_paths(inner, is_path=is_path)


def _split_path(path: str | Path) -> tuple[str, ...]:
    """Return the parts of a path or pattern, absolute and without links."""
    return Path(os.path.realpath(Path(path).expanduser())).parts


def _reads(pattern: Sequence[str], parts: Sequence[str], *, is_folder: bool) -> bool:
    """Whether a pattern matches a file or folder, a folder that it lies in, or, of a folder, what may lie in it."""
    if not pattern:
        return True
    if not parts:
        return is_folder or all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return any(_reads(pattern[1:], parts[start:], is_folder=is_folder) for start in range(len(parts) + 1))
    is_match = pattern[0] == parts[0] or fnmatchcase(parts[0], pattern[0])
    return is_match and _reads(pattern[1:], parts[1:], is_folder=is_folder)
