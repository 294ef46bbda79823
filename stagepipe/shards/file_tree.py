"""`FileTree`: the files of one sink whose parts are folders of files. Moves each file to its final place, in order.

Before a commit moves files, it writes their final names to a list of moves. So `restore` can delete the files that a
killed commit has moved and the journal does not know.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, cast

import msgspec

from stagepipe.core import UsageError
from stagepipe.shards.durability import sync_file, sync_files, sync_folder
from stagepipe.shards.position import FinishedShard, FolderFiles, ShardPosition
from stagepipe.shards.sink_folder import SinkFolder
from stagepipe.sinks import OWN_PREFIX, PART_PREFIX, FileTreeSink, PartRecord, PartSink

_MOVES_NAME: Final = f"{OWN_PREFIX}moves"


class _Moves(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a commit moves; after it, the journal has this number of rows."""

    rows_written: int
    names: list[str]


class _PendingPart(NamedTuple):
    folder: Path
    final_names: Mapping[str, str]
    """By the name in the part's folder."""


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
        """Files at their final places whose part the journal does not have yet."""
        self._files: dict[str, FolderFiles] = {}
        """Files of all parts so far, by subfolder."""
        self._changed_folders: set[str] = set()
        """Subfolders whose files the journal does not have yet."""

    def count_files(self) -> int:
        """See `SinkFolder`."""
        return sum(files.count for files in self._files.values())

    def require_own(self, recorded_names: Collection[str]) -> None:
        """See `SinkFolder`. In other subfolders, `list_own` of the sink says what is the job's."""
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
        """Raise ValueError if a subfolder has not the files that were written. Files of other names do not count."""
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
        """Delete what workers left that were killed."""
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
        sync_files([path for path in contents if path.exists()])  # not those that an interrupted commit has moved
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
            if path.exists():  # else an interrupted commit has moved it
                path.replace(self.path / final_name)
        shutil.rmtree(part.folder, ignore_errors=True)

    def _sync_folders(self) -> None:
        folders = {self.path}
        for name in self._unrecorded_names:
            folders.update(self.path / parent for parent in Path(name).parents)
        for folder in folders:
            sync_folder(folder)

    def mark_recorded(self) -> None:
        """The journal has recorded the last commit."""
        super().mark_recorded()
        self._changed_folders.clear()
        if self._unrecorded_names:
            self._unrecorded_names.clear()
            self._moves_path.unlink(missing_ok=True)
