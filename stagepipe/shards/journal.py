"""`Journal`: the file that records the durable state of a run. One per run, in the folder of its first sink.

Each line is a checksum and a JSON object: a header, then records with the position of each sink (`ShardPosition`). The
last whole line counts; a line that a kill or a power cut tore is ignored. Resuming rewrites the file with only its last
record. This module also makes files and the names in a folder survive a power cut; see fsync(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import zlib
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Final

import msgspec

from stagepipe.core import RunError, UsageError
from stagepipe.sinks import OWN_PREFIX, PartPlace

_MAX_SINGLE_SYNCS: Final = 16
"""One fsync takes milliseconds, so a thousand take seconds. A larger number of files is synced with one syncfs."""


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    _sync(path, os.O_RDONLY)


def sync_files(paths: Sequence[Path]) -> None:
    """Wait until the contents of files of one filesystem are on the disk."""
    if len(paths) <= _MAX_SINGLE_SYNCS:
        for path in paths:
            sync_file(path)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(paths[0], os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.syncfs(fd):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and wait until their names are on the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk: new, renamed and deleted ones."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


LOCK_NAME: Final = f"{OWN_PREFIX}lock"


class FolderLock:
    """An exclusive flock(2) on a file in the folder. The file stays: after a deletion, two runs could hold a lock."""

    def __init__(self, folder: Path) -> None:
        """Take the lock. Raises UsageError if another process has it, or the folder cannot be written."""
        path = folder / LOCK_NAME
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"sink: cannot write to the folder {folder}: {error.strerror}; set another `path`"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise UsageError(
                f"sink: another run writes to the folder {folder}; wait for its end, or set another `path`"
            ) from error

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_MODULUS: Final = 1 << 63
"""The range of whole numbers in msgspec's JSON."""


class FinishedShard(msgspec.Struct, frozen=True, array_like=True):
    """A shard under its final name."""

    name: str
    rows: int
    size_bytes: int


class FolderFiles(msgspec.Struct, frozen=True, array_like=True):
    """The files that were written to a subfolder of a file tree.

    `digest` is the sum of a hash of each file's name and size, modulo 2**63. It has a fixed length, needs no list of
    the files, and does not depend on their order.
    """

    count: int = 0
    digest: int = 0

    def add(self, name: str, size_bytes: int) -> FolderFiles:
        """Return the files with one more file."""
        text = f"{size_bytes} {name}".encode(errors="surrogateescape")
        value = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return FolderFiles(self.count + 1, (self.digest + value) % _MODULUS)


class ShardPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a sink: the number of its next or open shard, and the content of the open one.

    `size_bytes` is 0 if no shard is open. `parts` are the parts of the open shard since the previous commit; after
    `merge`, all of them. `kept`: see `PartSink.prepare_part`; None if it is unchanged since the previous commit.
    `files` has the files in each subfolder of a file tree that changed since the previous commit; after `merge`, in all
    subfolders.
    """

    shard: int = 0
    rows: int = 0
    size_bytes: int = 0
    parts: list[PartPlace] = []
    kept: dict[str, Any] | None = None
    rows_written: int = 0
    files: dict[str, FolderFiles] = {}

    def merge(self, next_position: ShardPosition) -> ShardPosition:
        """Return the position of the next commit, with all parts of the open shard.

        If a commit was interrupted after its record and repeated, some of its parts are already known: each counts
        once.
        """
        known = self.parts if next_position.shard == self.shard else []
        end = known[-1].offset + known[-1].size if known else 0
        return msgspec.structs.replace(
            next_position,
            parts=[*known, *(part for part in next_position.parts if part.offset >= end)],
            kept=self.kept if next_position.kept is None else next_position.kept,
            files={**self.files, **next_position.files},
        )


JOURNAL_NAME: Final = f"{OWN_PREFIX}journal"
_VERSION: Final = 2
_MAX_BYTES: Final = 4 << 20
"""A longer file is replaced by one with a single record."""


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The durable state: the state of the pipeline after `items` items, and the position of each sink.

    With `has_all_items`, no more items come, and the files only need their final names. `finished_shards` has, for each
    sink, the shards finished since the previous record; after `merge`, all shards. `code` has a digest of the code of
    each stage that the config names by import path. `letters_bytes` is the size of the file of dead letters.
    """

    state: dict[str, Any]
    items: int
    positions: list[ShardPosition]
    finished_shards: list[list[FinishedShard]]
    has_all_items: bool = False
    is_finished: bool = False
    code: dict[str, str] = {}
    letters_bytes: int = 0

    def merge(self, next_record: JournalRecord) -> JournalRecord:
        """Return the next record, with all shard data of this one."""
        positions = zip(self.positions, next_record.positions, strict=True)
        shards = zip(self.finished_shards, next_record.finished_shards, strict=True)
        return msgspec.structs.replace(
            next_record,
            positions=[position.merge(next_position) for position, next_position in positions],
            finished_shards=[list(dict.fromkeys([*before, *new])) for before, new in shards],
        )


class _Header(msgspec.Struct, frozen=True, kw_only=True, tag="stagepipe.journal"):
    """The first line. `state` has the keys of the pipeline's state that do not change."""

    version: int
    folders: list[str]
    state: dict[str, Any]


class Journal:
    """The journal of one run. Its folder must be locked."""

    def __init__(self, folder: Path) -> None:
        """Use the journal in `folder`."""
        self._path = folder / JOURNAL_NAME
        self._fd = -1
        self._size_bytes = 0
        self._folders: list[Path] = []
        self._fixed_state: dict[str, Any] = {}
        self._merged: JournalRecord | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a journal of an earlier run."""
        return self._path.exists()

    def load(self, sink_count: int) -> JournalRecord | None:
        """Return the last record, with all finished shards; None if there is no journal.

        Raises UsageError if it is damaged, or has another number of sinks.
        """
        try:
            header, records = self._read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._make_error(error.strerror or str(error)) from error
        if any(len(r.positions) != sink_count or len(r.finished_shards) != sink_count for r in records):
            raise UsageError(
                f"{self._path}: this run wrote to {len(header.folders)} sinks, the config has {sink_count}; resume "
                "with the config of the run, or set `overwrite: true` on the sinks and run without --resume"
            )
        merged = reduce(JournalRecord.merge, records)
        return msgspec.structs.replace(merged, state={**header.state, **merged.state})

    def list_names(self) -> dict[Path, set[str]]:
        """Return the shards and subfolders that the run made, by resolved folder; {} without a readable journal."""
        try:
            header, records = self._read()
        except (OSError, UsageError):
            return {}
        folders = [self._path.parent, *map(Path, header.folders[1:])]  # its own folder may have moved
        names: dict[Path, set[str]] = {}
        for record in records:
            for folder, shards, position in zip(folders, record.finished_shards, record.positions, strict=False):
                made = names.setdefault(folder.resolve(), set())
                made.update(shard.name for shard in shards)
                made.update(name.partition("/")[0] for name in position.files)
        return names

    def _read(self) -> tuple[_Header, list[JournalRecord]]:
        """Return the content of the file. Raises OSError, and UsageError if it is damaged."""
        lines = self._path.read_bytes().split(b"\n")
        documents = list(map(_decode_line, lines[:-1]))
        if not documents or documents[0] is None or None in documents[:-1]:
            raise self._make_error("a line before its last one does not match its checksum")
        try:
            header = msgspec.json.decode(documents[0], type=_Header)
            records = [msgspec.json.decode(text, type=JournalRecord) for text in documents[1:] if text is not None]
        except msgspec.MsgspecError as error:
            raise self._make_error(str(error)) from error
        if header.version != _VERSION:
            raise self._make_error(f"it has version {header.version}, expected {_VERSION}")
        if not records:
            raise self._make_error("it has no record")
        return header, records

    def _make_error(self, reason: str) -> UsageError:
        return UsageError(
            f"{self._path}: this is not the journal of a run ({reason}); set another `path`, or `overwrite: true` to "
            "delete the shards in its folder"
        )

    def start(self, folders: list[Path], record: JournalRecord) -> None:
        """Begin the file with `record`, atomically. Raises RunError if it cannot be written."""
        self._folders = folders
        self._merged = record
        self._fixed_state = {key: value for key, value in record.state.items() if not key.startswith("rank")}
        header = _Header(version=_VERSION, folders=list(map(str, folders)), state=self._fixed_state)
        partial_path = self._path.with_name(f"{JOURNAL_NAME}-partial")
        self.close()
        try:
            self._fd = os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._size_bytes = _write_whole(self._fd, _encode_line(header) + self._encode_record(record))
            os.fsync(self._fd)
            partial_path.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise self._make_write_error(error) from error

    def append(self, record: JournalRecord) -> None:
        """Add `record` and wait until it is durable. Raises RunError if it cannot be written."""
        merged = record if self._merged is None else self._merged.merge(record)
        if self._size_bytes > _MAX_BYTES:
            self.start(self._folders, merged)
            return
        self._merged = merged
        try:
            self._size_bytes += _write_whole(self._fd, self._encode_record(record))
            os.fdatasync(self._fd)
        except OSError as error:
            self.close()  # it may end in half a line, after which no line may follow
            raise self._make_write_error(error) from error

    def _encode_record(self, record: JournalRecord) -> bytes:
        state = {key: value for key, value in record.state.items() if self._fixed_state.get(key) != value}
        return _encode_line(msgspec.structs.replace(record, state=state))

    def _make_write_error(self, error: OSError) -> RunError:
        return RunError(
            f"sink: the journal {self._path} cannot be written: {error.strerror}; free disk space, then --resume"
        )

    def delete(self) -> None:
        """Delete the journal of an earlier run."""
        self._path.unlink(missing_ok=True)
        sync_folder(self._path.parent)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _encode_line(document: msgspec.Struct) -> bytes:
    text = msgspec.json.encode(document)
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode_line(line: bytes) -> bytes | None:
    """Return the JSON of a line; None if it is torn."""
    checksum, _, text = line.partition(b" ")
    return text if checksum == b"%08x" % zlib.crc32(text) else None


def _write_whole(fd: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)
