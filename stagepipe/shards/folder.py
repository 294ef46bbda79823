"""`ShardFolder`: the shards of one sink. Makes them of the parts that the sink's workers have written, in order.

Nothing is durable, and no shard has its final name, before `commit`. The journal holds the position of the last commit,
and `restore` brings the folder back to it: it truncates the open shard, and deletes what was written after the commit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, Final, NamedTuple

from stagepipe.core import UsageError
from stagepipe.shards.durability import sync_file, sync_folder
from stagepipe.shards.position import FinishedShard, ShardPosition
from stagepipe.shards.sink_folder import SinkFolder
from stagepipe.sinks import OPEN_PREFIX, PART_PREFIX, PartPlace, PartRecord, PartSink

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
        """How many parts of the open shard the journal has."""
        self._pending: list[_PendingShard] = []
        self._unrecorded: list[FinishedShard] = []
        """Shards with their final names that the journal does not list yet."""

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
        """Give a shard the name in the journal again, if it was renamed at the end of the job."""
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
        """Add the next part: to the open shard, or as a shard of its own. Deletes the part's own file."""
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
        """Finish the open shard: the job has no more parts. Delete what workers left that were killed."""
        self._finish_open_shard()
        kept_names = {pending.path.name for pending in self._pending}
        self._delete(p for p in self._iter_paths() if p.name.startswith(PART_PREFIX) and p.name not in kept_names)

    def _complete(self) -> None:
        """Give the shards the names that say how many there are, then describe them."""
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
            kept=self._get_unrecorded_kept(),
            rows_written=self.rows_written,
        )
        return position, list(self._unrecorded)

    def mark_recorded(self) -> None:
        """The journal has recorded the last commit."""
        super().mark_recorded()
        self._unrecorded.clear()
        self._recorded_parts = len(self._parts)

    def close(self) -> None:
        """Close the open shard's file and release the folder."""
        if self._file is not None:
            with suppress(OSError):  # the disk is full: what is not flushed was not committed
                self._file.close()
            self._file = None
        super().close()
