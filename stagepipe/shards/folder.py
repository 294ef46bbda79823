"""`SinkFolder`: the folder of one sink, which takes the parts that workers have written, in order.

Before `commit`, nothing is durable, and no file has its final name. The journal holds the position of the last commit,
and `restore` brings the folder back to it.

`ShardFolder` appends parts to shards: `restore` truncates the open one, and deletes all data after the commit.
`FileTree` moves each file of a part to its final place. Before a commit moves files, it writes their final names to a
list of moves. `restore` can thus delete files that a killed commit has moved and that are missing in the journal.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple, cast

import msgspec

from stagepipe.core import RunError, UsageError
from stagepipe.shards.journal import (
    JOURNAL_NAME,
    FinishedShard,
    FolderFiles,
    FolderLock,
    ShardPosition,
    make_folder,
    sync_file,
    sync_files,
    sync_folder,
)
from stagepipe.sinks import OPEN_PREFIX, OWN_PREFIX, PART_PREFIX, FileTreeSink, PartPlace, PartRecord, PartSink

_DESCRIPTION_NAME: Final = f"{PART_PREFIX}description"
_PATH_ARGUMENTS: Final = frozenset({"path", "glob"})
"""The arguments of the built-in sources for the paths and patterns of their files."""


class SinkFolder(ABC):
    """The folder of one sink. One run at a time uses it."""

    temporary_prefixes: ClassVar[tuple[str, ...]] = (PART_PREFIX,)
    """Prefixes of the names of files that a resume may delete."""

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
        """Rows of all parts, including those of earlier runs of the same job."""
        self._has_new_names = False

    def is_unused(self) -> bool:
        """Whether the folder contains only a journal and leftovers of killed workers."""
        return all(
            path.name == JOURNAL_NAME or not _is_kept_without_overwrite(path.name) for path in self._iter_paths()
        )

    def require_empty(self) -> None:
        """Raise UsageError if the folder has files or belongs to an unfinished job, unless the sink has `overwrite`."""
        foreign_name = next((path.name for path in self._iter_paths() if _is_kept_without_overwrite(path.name)), None)
        if foreign_name is not None and not self._sink.overwrite:
            raise UsageError(
                f"sink {self._name}: the folder {self.path.absolute()} is not empty (it has {foreign_name}), and this "
                "run has no journal to resume; set another `path`, or `overwrite: true` to delete the shards in it"
            )

    @abstractmethod
    def require_own(self, recorded_names: Collection[str]) -> None:
        """Raise UsageError if a user's folder has the name of a shard that `start` deletes."""

    def require_unread(self, recorded_names: Collection[str], source_arguments: Mapping[Any, Any]) -> None:
        """Raise UsageError if `start` would delete files that a source with these arguments reads.

        The arguments may contain those of nested sources. The files that a user's dataset reads are unknown.
        """
        patterns = [_split_path(text) for text in _iter_paths(source_arguments)]
        for path in self._sink.list_own(recorded_names) if patterns else ():
            if any(_reads(pattern, _split_path(path), is_folder=path.is_dir()) for pattern in patterns):
                raise UsageError(
                    f"sink {self._name}: `overwrite` would delete {path.absolute()}, which the source reads; set "
                    "another `path`"
                )

    def start(self, recorded_names: Collection[str]) -> None:
        """Start a new job. It also deletes `recorded_names`, the files in the journals of earlier runs."""
        paths = [path for path in self._iter_paths() if self._is_temporary(path) or path.name == JOURNAL_NAME]
        paths += self._sink.list_own(recorded_names)
        self._delete(sorted(paths, reverse=True))  # the last shard first: a kill leaves no gap
        for folder in {path.parent for path in paths} - {self.path}:
            with suppress(OSError):  # it contains a file of the user
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
        """Finish the open shard: the job has no more parts. Delete leftovers of killed workers."""

    def complete(self) -> None:
        """Write the description of the whole, after the journal has recorded the last part. May be called again.

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
        """Return the number of data files that the job has written."""
        return self._count_shards()

    def _count_shards(self) -> int:
        return 0

    def commit(self) -> tuple[ShardPosition, list[FinishedShard]]:
        """Make all parts so far durable, under their final names. Returns the data for the journal.

        It may be interrupted anywhere and called again. `mark_recorded` ends the commit. Raises RunError if the disk is
        full.
        """
        with self._explain_write_errors():
            return self._commit()

    @abstractmethod
    def _commit(self) -> tuple[ShardPosition, list[FinishedShard]]:
        """Implement `commit`."""

    @contextmanager
    def _explain_write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"sink {self._name}: the files in {self.path} cannot be written: {error.strerror}; free disk space, "
                "then --resume"
            ) from error

    def mark_recorded(self) -> None:
        """Note that the journal has recorded the last commit."""
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
        """Whether it belongs to a run, but is not the lock, the journal or a file with its final name."""
        return path.name.startswith(self.temporary_prefixes)

    def _delete(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            self._has_new_names = True


def _is_kept_without_overwrite(name: str) -> bool:
    """Whether it belongs to the user or another job, and is not a leftover of a killed worker."""
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
    """Whether a pattern matches a path, a parent of it, or, for a folder, something that may lie in it."""
    if not pattern:
        return True
    if not parts:
        return is_folder or all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return any(_reads(pattern[1:], parts[start:], is_folder=is_folder) for start in range(len(parts) + 1))
    is_match = pattern[0] == parts[0] or fnmatchcase(parts[0], pattern[0])
    return is_match and _reads(pattern[1:], parts[1:], is_folder=is_folder)


_COPY_BYTES: Final = 1 << 20


class _PendingShard(NamedTuple):
    path: Path
    shard: FinishedShard


class ShardFolder(SinkFolder):
    """The folder of one sink, whose files are shards. One run at a time uses it."""

    temporary_prefixes: ClassVar[tuple[str, ...]] = (OPEN_PREFIX, PART_PREFIX)

    def __init__(self, sink: PartSink, name: str) -> None:
        """See `SinkFolder`."""
        super().__init__(sink, name)
        self._file: BinaryIO | None = None
        self._shard = 0
        self._rows = 0
        self._size_bytes = 0
        self._parts: list[PartPlace] = []
        self._recorded_parts = 0
        """The number of parts of the open shard that the journal has."""
        self._pending: list[_PendingShard] = []
        self._unrecorded: list[FinishedShard] = []
        """Shards with their final names that are not yet in the journal."""

    # ------------------------------------------------------------------ start

    def require_own(self, recorded_names: Collection[str]) -> None:
        """See `SinkFolder`."""
        self._refuse_folders(self._sink.list_own(recorded_names))

    def _refuse_folders(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                raise UsageError(f"sink {self._name}: {path} is a folder, in the place of a shard; move it elsewhere")

    def restore(self, position: ShardPosition, finished: Iterable[FinishedShard]) -> None:
        """Bring the folder back to `position`. Raises UsageError if a shard is missing or was changed."""
        finished = list(finished)
        finished_names = set()
        later_paths = list(self._sink.iter_numbered(position.shard))  # finished and renamed after the commit
        self._refuse_folders(later_paths)
        for number, shard in enumerate(finished):
            self._take_back_name(shard.name, self.path / self._sink.name_shard(number, len(finished)))
            self._require_size(self.path / shard.name, shard.size_bytes, is_exact=True)
            finished_names.add(shard.name)
        self._shard = position.shard
        self._rows = position.rows
        self._size_bytes = position.size_bytes
        self._parts = list(position.parts)
        self._recorded_parts = len(self._parts)
        self._restore_kept(position)
        open_path = self._make_open_path()
        if position.size_bytes:
            final_path = self.path / self._make_name()
            if not open_path.exists() and final_path.exists():
                final_path.replace(open_path)
            self._require_size(open_path, position.size_bytes, is_exact=False)
            os.truncate(open_path, position.size_bytes)
            self._file = open_path.open("r+b")
            self._file.seek(0, os.SEEK_END)
            finished_names.add(open_path.name)
        self._delete(p for p in self._iter_paths() if self._is_temporary(p) and p.name not in finished_names)
        self._delete(later_paths)

    def require_whole(self, position: ShardPosition, finished: Iterable[FinishedShard]) -> None:
        """See `SinkFolder`."""
        del position  # no shard is open
        finished = list(finished)
        for number, shard in enumerate(finished):
            path = self.path / self._sink.name_shard(number, len(finished))
            self._require_size(path, shard.size_bytes, is_exact=True)

    def _take_back_name(self, name: str, final_path: Path) -> None:
        """Restore the name of a shard in the journal, if the end of the job renamed it."""
        path = self.path / name
        if final_path != path and not path.exists() and final_path.exists():
            final_path.replace(path)

    def _require_size(self, path: Path, size_bytes: int, *, is_exact: bool) -> None:
        try:
            found = path.stat().st_size
        except OSError:
            found = -1
        if found == size_bytes or (found > size_bytes and not is_exact):
            return
        problem = "is missing" if found < 0 else f"has {found:,} bytes"
        raise UsageError(
            f"sink {self._name}: {path} {problem}, but the journal says {size_bytes:,} bytes; put the file back, or "
            "start over with `overwrite: true` and without --resume"
        )

    # ------------------------------------------------------------------ parts

    def add(self, record: PartRecord) -> None:
        """Add the next part: to the open shard, or as a separate shard. Deletes the part's own file."""
        if record.file is None:
            return
        path = self.path / record.file
        with self._explain_write_errors():
            self._sink.prepare_part(path, self._kept)
            size_bytes = path.stat().st_size
            if not self._sink.appends:
                self._finish_file(path, record.rows, size_bytes)
            else:
                self._append(path, record, size_bytes)
        self.rows_written += record.rows

    def _append(self, path: Path, record: PartRecord, size_bytes: int) -> None:
        if self._parts and not self._has_room(record.rows, size_bytes):
            self._finish_open_shard()
        file = self._file or self._open_shard()
        with path.open("rb") as part:
            shutil.copyfileobj(part, file, _COPY_BYTES)
        path.unlink()
        self._parts.append(PartPlace(self._size_bytes, size_bytes, record.rows))
        self._size_bytes += size_bytes
        self._rows += record.rows
        if self._sink.shard_items is not None and self._rows >= self._sink.shard_items:
            self._finish_open_shard()

    def _has_room(self, rows: int, size_bytes: int) -> bool:
        limit = self._sink.shard_items
        has_room_for_rows = limit is None or self._rows + rows <= limit
        return has_room_for_rows and self._size_bytes + size_bytes <= self._sink.shard_bytes

    def _open_shard(self) -> BinaryIO:
        self._file = file = self._make_open_path().open("w+b")
        self._has_new_names = True
        self._sink.begin_shard(file, self._kept)
        self._size_bytes = file.tell()
        return file

    def _finish_open_shard(self) -> None:
        file = self._file
        if file is None:
            return
        self._sink.finish_shard(file, self._parts, self._kept)
        file.seek(0, os.SEEK_END)
        size_bytes = file.tell()
        file.close()
        self._finish_file(self._make_open_path(), self._rows, size_bytes)
        self._file = None
        self._rows = 0
        self._size_bytes = 0
        self._parts = []
        self._recorded_parts = 0

    def _finish_file(self, path: Path, rows: int, size_bytes: int) -> None:
        self._pending.append(_PendingShard(path, FinishedShard(self._make_name(), rows, size_bytes)))
        self._shard += 1

    def _make_name(self) -> str:
        return self._sink.name_shard(self._shard)

    def _make_open_path(self) -> Path:
        return self.path / f"{OPEN_PREFIX}{self._make_name()}"

    # ------------------------------------------------------------------ durability

    def finish(self) -> None:
        """Finish the open shard: the job has no more parts. Delete leftovers of killed workers."""
        self._finish_open_shard()
        kept_names = {pending.path.name for pending in self._pending}
        self._delete(p for p in self._iter_paths() if p.name.startswith(PART_PREFIX) and p.name not in kept_names)

    def _complete(self) -> None:
        """Rename the shards to their final names, which contain the number of shards, then describe them."""
        for number in range(self._shard):
            path = self.path / self._sink.name_shard(number)
            final_path = self.path / self._sink.name_shard(number, self._shard)
            if final_path != path and path.exists():
                path.replace(final_path)
                self._has_new_names = True  # the next commit makes them durable
        super()._complete()

    def _count_shards(self) -> int:
        return self._shard

    def _commit(self) -> tuple[ShardPosition, list[FinishedShard]]:
        while self._pending:
            path, shard = self._pending[0]
            self._has_new_names = True
            if path.exists():  # otherwise an interrupt came right after its renaming
                sync_file(path)
                path.replace(self.path / shard.name)
            if shard not in self._unrecorded[-1:]:
                self._unrecorded.append(shard)
            del self._pending[0]
        if self._file is not None:
            self._file.flush()
            os.fdatasync(self._file.fileno())
        if self._has_new_names:
            sync_folder(self.path)
            self._has_new_names = False
        position = ShardPosition(
            shard=self._shard,
            rows=self._rows,
            size_bytes=self._size_bytes,
            parts=self._parts[self._recorded_parts :],
            kept=self._get_unrecorded_kept(),
            rows_written=self.rows_written,
        )
        return position, list(self._unrecorded)

    def mark_recorded(self) -> None:
        """Note that the journal has recorded the last commit."""
        super().mark_recorded()
        self._unrecorded.clear()
        self._recorded_parts = len(self._parts)

    def close(self) -> None:
        """Close the open shard's file and release the folder."""
        if self._file is not None:
            with suppress(OSError):  # the disk is full: unflushed data was not committed
                self._file.close()
            self._file = None
        super().close()


_MOVES_NAME: Final = f"{OWN_PREFIX}moves"


class _Moves(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a commit moves. `rows_written` is the journal's number of rows after the commit."""

    rows_written: int
    names: list[str]


class _PendingPart(NamedTuple):
    folder: Path
    final_names: Mapping[str, str]
    """Final names by the name in the part's folder."""


class FileTree(SinkFolder):
    """The folder of a `FileTreeSink`. One run at a time uses it."""

    temporary_prefixes: ClassVar[tuple[str, ...]] = (PART_PREFIX, _MOVES_NAME)

    def __init__(self, sink: PartSink, name: str) -> None:
        """See `SinkFolder`."""
        super().__init__(sink, name)
        self._tree_sink = cast("FileTreeSink", sink)
        self._moves_path = self.path / _MOVES_NAME
        self._pending: list[_PendingPart] = []
        self._unrecorded_names: list[str] = []
        """Files at their final places whose part is not yet in the journal."""
        self._files: dict[str, FolderFiles] = {}
        """Files of all parts so far, by subfolder."""
        self._changed_folders: set[str] = set()
        """Subfolders whose files are not yet in the journal."""

    def count_files(self) -> int:
        """See `SinkFolder`."""
        return sum(files.count for files in self._files.values())

    def require_own(self, recorded_names: Collection[str]) -> None:
        """See `SinkFolder`. In other subfolders, `list_own` of the sink decides which files belong to the job."""
        for path in self._sink.list_own(recorded_names):
            if path.is_symlink() and path.is_dir():
                raise UsageError(
                    f"sink {self._name}: {path} is a link to a folder, in the place of a subfolder; remove the link"
                )

    def restore(self, position: ShardPosition, finished: Iterable[FinishedShard]) -> None:
        """Bring the folder back to `position`. Raises UsageError if files or the list of moves are damaged."""
        self._restore_kept(position)
        self._undo_moves()
        self.require_whole(position, finished)
        self._delete(path for path in self._iter_paths() if self._is_temporary(path))

    def require_whole(self, position: ShardPosition, finished: Iterable[FinishedShard]) -> None:
        """See `SinkFolder`. Compares the names and sizes of the files in each subfolder."""
        del finished  # there are no shards
        self._files = dict(position.files)
        try:
            self._require_files()
        except ValueError as error:
            raise UsageError(f"sink {self._name}: {error}") from error

    def _undo_moves(self) -> None:
        """Delete the files that were moved after the last record."""
        try:
            moves = msgspec.json.decode(self._moves_path.read_bytes(), type=_Moves)
        except FileNotFoundError:
            return
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"sink {self._name}: {self._moves_path} is damaged ({error}); start over with `overwrite: true` and "
                "without --resume"
            ) from error
        if moves.rows_written > self.rows_written:
            for name in moves.names:
                (self.path / name).unlink(missing_ok=True)

    def _require_files(self) -> None:
        """Raise ValueError if a subfolder differs from the written files. Files with other names do not count."""
        for name, written in self._files.items():
            folder = self.path / name
            found = FolderFiles()
            for entry in os.scandir(folder) if folder.is_dir() else ():
                if self._tree_sink.may_be_placed(entry.name):
                    size_bytes = entry.stat().st_size if os.path.exists(entry) else 0  # noqa: PTH110 - one per file
                    found = found.add(entry.name, size_bytes)
            if found == written:
                continue
            problem = f"has {found.count:,} files, but {written.count:,} were written"
            fix = "put the files back"
            if found.count > written.count:
                fix = "move yours elsewhere"
            elif found.count == written.count:
                problem = f"has {found.count:,} files, but not all with the names and sizes that were written"
            raise ValueError(
                f"{folder} {problem}; {fix} and --resume, or start over with `overwrite: true` and without --resume"
            )

    def add(self, record: PartRecord) -> None:
        """Add the next part. Its files move with the next commit."""
        if record.file is None:
            return
        folder = self.path / record.file
        final_names = self._tree_sink.place_files(folder, self.rows_written, record.rows, self._kept)
        files: dict[str, FolderFiles] = {}
        for name, final_name in final_names.items():
            parent, _, file_name = final_name.rpartition("/")
            size_bytes = os.stat(folder / name).st_size  # noqa: PTH116 - one per file: quick
            files[parent] = (files.get(parent) or self._files.get(parent, FolderFiles())).add(file_name, size_bytes)
        self._pending.append(_PendingPart(folder, final_names))
        self._files.update(files)
        self._changed_folders.update(files)
        self.rows_written += record.rows

    def finish(self) -> None:
        """Delete leftovers of killed workers."""
        kept_names = {part.folder.name for part in self._pending}
        self._delete(p for p in self._iter_paths() if p.name.startswith(PART_PREFIX) and p.name not in kept_names)

    def _commit(self) -> tuple[ShardPosition, list[FinishedShard]]:
        if self._pending:
            self._write_moves()
            while self._pending:
                self._move(self._pending[0])
                del self._pending[0]
            self._sync_folders()
        position = ShardPosition(
            kept=self._get_unrecorded_kept(),
            rows_written=self.rows_written,
            files={name: self._files[name] for name in sorted(self._changed_folders)},
        )
        return position, []

    def _complete(self) -> None:
        self._require_files()
        super()._complete()

    def _write_moves(self) -> None:
        """Make the content of the parts durable, then the list of their final names."""
        contents = [part.folder / name for part in self._pending for name in part.final_names]
        sync_files([path for path in contents if path.exists()])  # without those that an interrupted commit has moved
        names = [name for part in self._pending for name in part.final_names.values()]
        moves = _Moves(rows_written=self.rows_written, names=[*self._unrecorded_names, *names])
        partial_path = self.path / f"{_MOVES_NAME}-partial"
        partial_path.write_bytes(msgspec.json.encode(moves))
        sync_file(partial_path)
        partial_path.replace(self._moves_path)
        sync_folder(self.path)

    def _move(self, part: _PendingPart) -> None:
        for folder in {(self.path / name).parent for name in part.final_names.values()}:
            folder.mkdir(parents=True, exist_ok=True)
        self._unrecorded_names.extend(part.final_names.values())
        for name, final_name in part.final_names.items():
            path = part.folder / name
            if path.exists():  # otherwise an interrupted commit has moved it
                path.replace(self.path / final_name)
        shutil.rmtree(part.folder, ignore_errors=True)

    def _sync_folders(self) -> None:
        folders = {self.path}
        for name in self._unrecorded_names:
            folders.update(self.path / parent for parent in Path(name).parents)
        for folder in folders:
            sync_folder(folder)

    def mark_recorded(self) -> None:
        """Note that the journal has recorded the last commit."""
        super().mark_recorded()
        self._changed_folders.clear()
        if self._unrecorded_names:
            self._unrecorded_names.clear()
            self._moves_path.unlink(missing_ok=True)
