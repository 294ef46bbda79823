"""`StoredFile` and `find_stored_files`: the files of a source, on this machine or remote. Runs where a source is built.

Remote paths are URLs (`s3://bucket/*.jsonl`), which fsspec opens; `storage_options` are those of its file systems.
"""

from __future__ import annotations

import glob as globbing
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from stagepipe.core import SourceFiles, describe_files, import_extra
from stagepipe.sources.storage.content_samples import sample_contents
from stagepipe.sources.storage.unreadable_folders import check_folders


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file: its path or URL, and what identifies its content without reading it."""

    name: str
    size: int
    """In bytes."""
    version: str
    """Changes with the content: the time of the last change, or the remote file system's own tag."""
    file_system: Any = field(default=None, compare=False)
    """The file system of fsspec; None for a file of this machine."""
    path: str = ""
    """The path in the file system."""
    modified_ns: int | None = None
    """The time of the last change, where `check_unchanged` can compare it."""

    def check_unchanged(self, descriptor: int | None = None) -> None:
        """Raise ValueError if the file has changed since it was found. `descriptor` is the open file, if known."""
        if self.modified_ns is not None:
            status = os.stat(self.path if descriptor is None else descriptor)  # noqa: PTH116 - of a descriptor too
            require_unchanged(self.name, (self.size, self.modified_ns), status)

    def make_change_error(self) -> ValueError:
        """Return the error of a file that has changed since it was found."""
        return _make_change_error(self.name)

    def open(self) -> BinaryIO:
        """Open the file for reading from its start."""
        if self.file_system is None:
            return Path(self.path).open("rb")
        return cast("BinaryIO", self.file_system.open(self.path, "rb"))


def find_stored_files(
    path: str | Sequence[str], label: str, storage_options: Mapping[str, Any] | None = None
) -> list[StoredFile]:
    """Return the files that match a path, a pattern or several of them, each once, in the order of their names.

    Raises ValueError if a pattern matches no file, OSError if its folder cannot be read, and UsageError if fsspec is
    missing.
    """
    patterns = [path] if isinstance(path, str | os.PathLike) else list(path)
    files: dict[str, StoredFile] = {}
    for pattern in map(str, patterns):
        finder = _find_remote(pattern, label, storage_options or {}) if is_remote(pattern) else _find_local(pattern)
        found = {file.name: file for file in finder}
        if not is_remote(pattern):
            check_folders(pattern, label, has_matches=bool(found))
        if not found:
            raise ValueError(_describe_missing(pattern, label))
        files |= found
    if not files:
        raise ValueError(f"{label}: `path` is an empty list; name a file or a pattern")
    return [files[name] for name in sorted(files)]


def require_unchanged(name: str, expected: tuple[int, int], status: os.stat_result) -> None:
    """Raise ValueError if a file has another size, or time of its last change in ns, than expected."""
    if (status.st_size, status.st_mtime_ns) != expected:
        raise _make_change_error(name)


def _make_change_error(name: str) -> ValueError:
    return ValueError(f"{name} changed since its index was built; do not change data files during a run")


def describe_stored_files(files: Sequence[StoredFile]) -> SourceFiles:
    """Return what identifies files in the state of a run."""
    versions = [file.version for file in files]
    is_local = all(file.file_system is None for file in files)
    samples = sample_contents([file.path for file in files], versions) if is_local else None
    return describe_files([file.name for file in files], [file.size for file in files], versions, samples)


def is_remote(path: str) -> bool:
    """Return whether a path is a URL.

    >>> is_remote("s3://bucket/a.jsonl"), is_remote("data/a.jsonl")
    (True, False)
    """
    return "://" in path


def _find_local(pattern: str) -> Iterator[StoredFile]:
    # Not Path.glob: it needs a separate folder and refuses an absolute pattern.
    expanded = str(Path(pattern).expanduser())
    is_file = os.path.isfile  # a Path raises for a folder that cannot be read, which `check_folders` reports
    names = [expanded] if is_file(expanded) else globbing.iglob(expanded, recursive=True)  # noqa: PTH207
    for name in names:
        if is_file(name):
            status = Path(name).stat()
            path = str(Path(name).absolute())
            modified_ns = status.st_mtime_ns
            yield StoredFile(
                name=name, size=status.st_size, version=str(modified_ns), path=path, modified_ns=modified_ns
            )


def _find_remote(pattern: str, label: str, storage_options: Mapping[str, Any]) -> Iterator[StoredFile]:
    fsspec = import_extra("fsspec", "remote", f"{label}: {pattern}")
    try:
        file_system, path = fsspec.core.url_to_fs(pattern, **storage_options)
        has_pattern = any(mark in path for mark in "*?[")
        names = file_system.glob(path) if has_pattern else [path] if file_system.isfile(path) else []
    except (ImportError, ValueError) as error:  # the package of a protocol is missing, or there is no such protocol
        raise ValueError(f"{label}: cannot open {pattern!r}: {error}") from error
    for name in names:
        information = file_system.info(name)
        if information["type"] != "file":
            continue
        if information.get("size") is None:
            raise ValueError(f"{label}: {name}: the server does not tell its size; download the file first")
        yield StoredFile(
            name=name if is_remote(name) else str(file_system.unstrip_protocol(name)),
            size=information["size"],
            version=str(file_system.ukey(name)),
            file_system=file_system,
            path=name,
        )


def _describe_missing(pattern: str, label: str) -> str:
    if is_remote(pattern):
        return f"{label}: no file matches {pattern!r}; check the path, and the rights of your account"
    if Path(pattern).expanduser().is_dir():
        return f"{label}: {pattern!r} is a folder; write a pattern: {str(Path(pattern) / '*')!r}"
    return (
        f"{label}: no file matches {pattern!r} in the current directory {Path.cwd()}; start stagepipe in the folder "
        "that the path is relative to, or use an absolute path"
    )
