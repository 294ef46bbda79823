"""`ShardFolder`: the shards of one sink. Makes them of the parts that the sink's workers have written, in order.

Nothing is durable, and no shard has its final name, before `commit`. The journal holds the position of the last commit,
and `restore` brings the folder back to it: it truncates the open shard, and deletes what was written after the commit.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from stagepipe.core import RunError, UsageError
from stagepipe.shards.durability import sync_file, sync_folder
from stagepipe.shards.locking import FolderLock
from stagepipe.sinks import OWN_PREFIX, PART_PREFIX, PartPlace, PartRecord, PartSink

_OPEN_PREFIX: Final = f"{OWN_PREFIX}open-"
_COPY_BYTES: Final = 1 << 20


class FinishedShard(msgspec.Struct, frozen=True, array_like=True):
    """A shard under its final name."""

    name: str
    rows: int
    size_bytes: int


class ShardPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sink stands: the number of its next or open shard, and what the open one holds.

    `size_bytes` is 0 if none is open. `parts` are those of the open shard since the commit before; with `merge`, all of
    them. `kept`: see `PartSink.prepare_part`; None if it is that of the commit before.
    """

    shard: int = 0
    rows: int = 0
    size_bytes: int = 0
    parts: list[PartPlace] = []
    kept: dict[str, Any] | None = None
    rows_written: int = 0

    def merge(self, next_position: ShardPosition) -> ShardPosition:
        """Return the position of the next commit, with all parts of the open shard."""
        is_same_shard = next_position.shard == self.shard
        return msgspec.structs.replace(
            next_position,
            parts=[*self.parts, *next_position.parts] if is_same_shard else next_position.parts,
            kept=self.kept if next_position.kept is None else next_position.kept,
        )


class _PendingShard(NamedTuple):
    path: Path
    shard: FinishedShard


class ShardFolder:
    """The folder of one sink. One run at a time uses it."""

    def __init__(self, sink: PartSink, name: str) -> None:
        """Create the folder if it is missing, and lock it. `name` is the sink's, for messages.

        Raises UsageError if another run uses the folder, or it cannot be written.
        """
        self._sink = sink
        self._name = name
        self.path: Final = sink.path
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"sink {name}: the folder {self.path} cannot be created: {error.strerror}; set another `path`"
            ) from error
        self._lock = FolderLock(self.path)
        self._file: BinaryIO | None = None
        self._shard = 0
        self._rows = 0
        self._size_bytes = 0
        self._parts: list[PartPlace] = []
        self._recorded_parts = 0
        """How many parts of the open shard the journal has."""
        self._kept: dict[str, Any] = {}
        self._recorded_kept: dict[str, Any] | None = None
        self.rows_written = 0
        """Rows in all shards, those of earlier runs of the same job included."""
        self._pending: list[_PendingShard] = []
        self._unrecorded: list[FinishedShard] = []
        """Shards with their final names that the journal does not list yet."""
        self._has_new_names = False
        extension = re.escape(sink.extension)
        self._shard_pattern = re.compile(rf"{re.escape(sink.prefix)}(\d{{6,}}){extension}")

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Start a new job. Raises UsageError if the folder is not empty, unless the sink has `overwrite`."""
        foreign_name = next((name for name in self._iter_names() if not name.startswith(OWN_PREFIX)), None)
        if foreign_name is not None and not self._sink.overwrite:
            raise UsageError(
                f"sink {self._name}: the folder {self.path.absolute()} is not empty (it has {foreign_name}), and has "
                "no journal of a run to resume; set another `path`, or `overwrite: true` to delete the shards in it"
            )
        self._delete(name for name in self._iter_names() if self._is_own(name))

    def restore(self, position: ShardPosition, finished: Iterable[FinishedShard]) -> None:
        """Bring the folder back to `position`. Raises UsageError if a shard is missing or was changed."""
        finished_names = set()
        for shard in finished:
            self._require_size(self.path / shard.name, shard.size_bytes, is_exact=True)
            finished_names.add(shard.name)
        self._shard = position.shard
        self._rows = position.rows
        self._size_bytes = position.size_bytes
        self._parts = list(position.parts)
        self._recorded_parts = len(self._parts)
        self._kept = dict(position.kept or {})
        self._recorded_kept = dict(self._kept)
        self.rows_written = position.rows_written
        open_path = self._make_open_path()
        if position.size_bytes:
            final_path = self.path / self._make_name()
            if not open_path.exists() and final_path.exists():  # finished and renamed after the commit
                final_path.replace(open_path)
            self._require_size(open_path, position.size_bytes, is_exact=False)
            os.truncate(open_path, position.size_bytes)
            self._file = open_path.open("r+b")
            self._file.seek(0, os.SEEK_END)
            finished_names.add(open_path.name)
        self._delete(name for name in self._iter_names() if self._is_own(name) and name not in finished_names)

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

    def _iter_names(self) -> Iterable[str]:
        return [entry.name for entry in os.scandir(self.path)]

    def _is_own(self, name: str) -> bool:
        """Whether a run makes files of this name, and may delete them: not the lock, and not the journal."""
        is_temporary = name.startswith((_OPEN_PREFIX, PART_PREFIX))
        return is_temporary or self._shard_pattern.fullmatch(name) is not None

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)
            self._has_new_names = True

    # ------------------------------------------------------------------ parts

    def add(self, record: PartRecord) -> None:
        """Add the next part: to the open shard, or as a shard of its own. Deletes the part's own file."""
        if record.file is None:
            return
        path = self.path / record.file
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
        return f"{self._sink.prefix}{self._shard:06d}{self._sink.extension}"

    def _make_open_path(self) -> Path:
        return self.path / f"{_OPEN_PREFIX}{self._make_name()}"

    # ------------------------------------------------------------------ durability

    def finish(self) -> None:
        """Finish the open shard: the job has no more parts. Delete what workers left that were killed."""
        self._finish_open_shard()
        kept_names = {pending.path.name for pending in self._pending}
        self._delete(name for name in self._iter_names() if name.startswith(PART_PREFIX) and name not in kept_names)

    def commit(self) -> tuple[ShardPosition, list[FinishedShard]]:
        """Make all parts so far durable, and give finished shards their names. Returns what the journal records.

        It may be interrupted anywhere and called again. `mark_recorded` ends the commit. Raises RunError if the disk is
        full.
        """
        try:
            return self._commit()
        except OSError as error:
            raise RunError(
                f"sink {self._name}: the shards in {self.path} cannot be written: {error.strerror}; make room, then "
                "--resume"
            ) from error

    def _commit(self) -> tuple[ShardPosition, list[FinishedShard]]:
        while self._pending:
            path, shard = self._pending[0]
            self._has_new_names = True
            if path.exists():  # else an interrupt came right after its renaming
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
            kept=None if self._kept == self._recorded_kept else dict(self._kept),
            rows_written=self.rows_written,
        )
        return position, list(self._unrecorded)

    def mark_recorded(self) -> None:
        """The journal has recorded the last commit."""
        self._unrecorded.clear()
        self._recorded_parts = len(self._parts)
        self._recorded_kept = dict(self._kept)

    def close(self) -> None:
        """Close the open shard's file and release the folder."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()
