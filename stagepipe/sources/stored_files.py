"""`StoredFile`, and the files that match paths and patterns, local or remote: every source finds its files here.

Remote paths are URLs (`s3://bucket/*.jsonl`), which fsspec opens; `storage_options` go to its file systems.
`sample_contents` hashes a bounded part of the files when a source is built; `RangeReader` reads bytes in the workers.
"""

from __future__ import annotations

import contextlib
import glob as globbing
import hashlib
import io
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from stagepipe.core import ContentSamples, SourceFiles, describe_files, import_extra, stage_locals
from stagepipe.sources.remote_requests import (
    LISTING_REPEAT_S,
    RemoteContent,
    get_information,
    is_file,
    read_remote,
    repeat_request,
)

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a pattern or a URL, or several of them."""

_ANY_DEPTH: Final = "**"
_MAX_NAMED: Final = 3
_LOST_SLASH: Final = re.compile(r"[a-z][a-z0-9+.-]+:/[^/]")
"""Matches a URL that `pathlib.Path` has turned into a path."""
_BRACES: Final = re.compile(r"\{.*(,|\.\.).*\}")
"""Matches the braces of shells and webdataset: `{a,b}`, `{000..099}`."""
_log = logging.getLogger("stagepipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file: its path or URL, and an identity of its content that needs no reading."""

    name: str
    size: int
    """The size in bytes."""
    version: str
    """Changes with the content: the time of the last change, or the tag of the remote file system."""
    file_system: Any = field(default=None, compare=False)
    """The file system of fsspec; None for a file of this machine."""
    path: str = ""
    """The path in the file system."""
    modified_ns: int | None = None
    """The time of the last change, if `check_unchanged` can compare it."""

    @property
    def key(self) -> tuple[str, int, str]:
        """The identity of the file and its content, local or remote."""
        return self.name if self.file_system else self.path, self.size, self.version

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
        return io.BufferedReader(RemoteContent(self), _MAX_BLOCKS_A_READ * REMOTE_BLOCK_BYTES)


def list_paths(path: Paths, label: str, argument: str = "path") -> list[str]:
    """Return the paths, patterns and URLs of an argument.

    >>> list_paths(Path("data"), "jsonl"), list_paths(["a", Path("b")], "jsonl")
    (['data'], ['a', 'b'])

    Raises TypeError if an entry is not a path, and ValueError for an empty list.
    """
    given: Any = [path] if isinstance(path, str | os.PathLike) else path
    hint = "give a path, a pattern or a list of them"
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise TypeError(f"{label}: `{argument}` is {path!r}; {hint}")
    if not given:
        raise ValueError(f"{label}: `{argument}` is an empty list; name a file or a pattern")
    names = [os.fspath(entry) if isinstance(entry, os.PathLike) else entry for entry in given]
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f"{label}: entry {number} of `{argument}` is {name!r}; {hint}")
    return names


def find_stored_files(
    path: Paths, label: str, storage_options: Mapping[str, Any] | None = None, argument: str = "path"
) -> list[StoredFile]:
    """Return the files that match a path, a pattern or several of them, without duplicates, sorted by name.

    Raises the errors of `iterate_files`.
    """
    return sorted(iterate_files(path, label, storage_options, argument), key=lambda file: file.name)


def iterate_files(
    path: Paths, label: str, storage_options: Mapping[str, Any] | None = None, argument: str = "path"
) -> Iterator[StoredFile]:
    """Yield the files that match a path, a pattern or several of them, without duplicates. Errors name `argument`.

    An existing path always stands for that file, even if it contains `[`. Patterns follow Python's `glob`: `**` matches
    any number of folders; `*` and `**` match no name that begins with a dot. `**` follows links to folders; a folder
    that it reaches on several paths is read once, on a path without links if there is one.

    Raises ValueError if a pattern matches no file, OSError if its folder cannot be read, TypeError if an entry is not a
    path, and UsageError if fsspec is missing.
    """
    seen: set[str] = set()
    for pattern in list_paths(path, label, argument):
        has_matches = False
        is_url = is_remote(pattern)
        found = _find_remote(pattern, label, storage_options or {}) if is_url else _find_local(pattern, label)
        for file in found:
            has_matches = True
            key = file.path if file.file_system is None else file.name
            if key not in seen:
                seen.add(key)
                yield file
        if not has_matches:
            raise ValueError(_describe_missing(pattern, label))


def find_stores(path: Paths, label: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the folders and files that match paths and patterns: local ones as absolute paths, and URLs.

    Raises the errors of `iterate_files`. A URL without a pattern is not looked up.
    """
    stores: set[str] = set()
    for pattern in list_paths(path, label):
        if is_remote(pattern):
            matches = _match_remote(pattern, label, storage_options or {}) if "*" in pattern else []
            found = [_make_url(pattern, *match) for match in matches] if "*" in pattern else [pattern]
        else:
            found = [_make_absolute(name) for name in _match(pattern, label, os.path.exists)]
        if not found:
            raise ValueError(_describe_missing(pattern, label))
        stores.update(found)
    return sorted(stores)


def require_unchanged(name: str, expected: tuple[int, int], status: os.stat_result) -> None:
    """Raise ValueError if a file's size or time of its last change in ns is not the expected one."""
    if (status.st_size, status.st_mtime_ns) != expected:
        raise _make_change_error(name)


def _make_change_error(name: str) -> ValueError:
    return ValueError(f"{name} changed since its index was built; do not change data files during a run")


def describe_stored_files(files: Sequence[StoredFile]) -> SourceFiles:
    """Return the identity of files for the state of a run."""
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


def _find_local(pattern: str, label: str) -> Iterator[StoredFile]:
    for name in _match(pattern, label, os.path.isfile):
        try:
            status = os.stat(name)  # noqa: PTH116 - of a name
        except OSError:  # removed in the meantime
            continue
        yield StoredFile(
            name=name,
            size=status.st_size,
            version=str(status.st_mtime_ns),
            path=_make_absolute(name),
            modified_ns=status.st_mtime_ns,
        )


def _make_absolute(name: str) -> str:
    """Return an absolute path without `..`, so that two names of a file in one folder are equal."""
    if ".." not in name:
        return os.path.join(os.getcwd(), name)  # noqa: PTH109, PTH118 - of names
    folder, file = os.path.split(name)
    return os.path.join(os.path.realpath(folder), file)  # noqa: PTH118 - `a/../b` is not `b` if `a` is a link


def _match(pattern: str, label: str, is_wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield the names that match a local pattern, and warn about skipped folders and links.

    `glob` skips unreadable folders and broken links silently: a run would succeed with a part of its data missing. The
    workers that read the items of a run build its source again, and do not repeat the warning.

    Raises PermissionError if nothing matches and a folder cannot be read.
    """
    expanded = os.path.expanduser(pattern)  # noqa: PTH111 - a Path raises for a file `~x`
    if expanded.endswith("/") and is_wanted is os.path.isfile:
        return
    expanded = _escape_names(expanded)
    unreadable: list[str] = []
    broken: list[str] = []
    has_matches = False
    for name in _expand(expanded, unreadable):
        if is_wanted(name):
            has_matches = True
            yield name
        elif os.path.islink(name) and not os.path.exists(name):  # noqa: PTH110, PTH114 - of names
            broken.append(name)
    identity = stage_locals.worker_identity
    if has_matches and identity is not None and not identity.is_source:
        return
    unreadable += islice(_find_unreadable(expanded), _MAX_NAMED + 1)
    if unreadable and not has_matches:
        folders = _name_some(unreadable)
        raise PermissionError(f"{label}: no file matches {pattern!r}, and these folders cannot be read: {folders}")
    if unreadable:
        message = "%s: the files of folders that cannot be read are left out of %r: %s"
        _log.warning(message, label, pattern, _name_some(unreadable))
    if broken and has_matches:
        _log.warning("%s: links that lead nowhere are left out of %r: %s", label, pattern, _name_some(broken))


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (" and others" if len(names) > _MAX_NAMED else "")


def _escape_names(pattern: str) -> str:
    """Return the pattern with `[` escaped in each part that names an existing file or folder."""
    parts: list[str] = []
    path = ""
    is_name = True
    for part in Path(pattern).parts:
        path = os.path.join(path, part)  # noqa: PTH118 - of names
        if is_name and "[" in part and not set(part) & set("*?") and os.path.lexists(path):
            parts.append(globbing.escape(part))
        else:
            parts.append(part)
            is_name = is_name and not globbing.has_magic(part)
    return str(Path(*parts))


def _expand(pattern: str, unreadable: list[str]) -> Iterator[str]:
    """Yield the matches of `glob`, but let `**` enter each folder once. Add the unreadable folders to `unreadable`."""
    parts = Path(pattern).parts
    if _ANY_DEPTH not in parts:
        yield from globbing.iglob(pattern)  # noqa: PTH207 - a Path refuses an absolute pattern
        return
    at = parts.index(_ANY_DEPTH)
    before = str(Path(*parts[:at])) if at else ""
    rest_parts = list(dropwhile(_ANY_DEPTH.__eq__, parts[at:]))
    rest = str(Path(*rest_parts)) if rest_parts else "*"
    for base in globbing.iglob(before) if before else ("",):  # noqa: PTH207
        for folder in _walk(base or ".", unreadable):
            inside = folder if base else folder[2:]
            if _ANY_DEPTH in rest_parts:
                yield from _expand(os.path.join(globbing.escape(inside), rest), unreadable)  # noqa: PTH118
            else:
                names = globbing.iglob(rest, root_dir=folder)  # noqa: PTH207
                yield from (os.path.join(inside, name) for name in names)  # noqa: PTH118


def _walk(base: str, unreadable: list[str]) -> Iterator[str]:
    """Yield a folder and all folders below it, each once: by its own path, else by the first path through links.

    A link to a folder that contains the link is a loop and is not followed.
    """
    entered: set[str] = set()
    tops = [base]
    while tops:
        links: list[str] = []
        for top in sorted(tops):
            real_top = os.path.realpath(top)
            for folder, names, _ in os.walk(top, onerror=lambda error: unreadable.append(str(error.filename))):
                real = real_top + folder[len(top) :]
                if real in entered:
                    names.clear()
                    continue
                entered.add(real)
                yield folder
                names[:] = [name for name in names if not name.startswith(".")]
                found = [path for name in names if os.path.islink(path := os.path.join(folder, name))]  # noqa: PTH114, PTH118
                links += [path for path in found if not f"{real}/".startswith(f"{os.path.realpath(path)}/")]
        tops = links


def _find_unreadable(pattern: str) -> Iterator[str]:
    """Yield the folders above `**` that a pattern would search but that this user may not read."""
    parts = Path(pattern).parts
    for number, part in enumerate(parts):
        if part == _ANY_DEPTH:
            return
        before = str(Path(*parts[:number])) if number else "."
        folders = [name for name in globbing.iglob(before) if os.path.isdir(name)]  # noqa: PTH112, PTH207 - of names
        rights = os.X_OK | (os.R_OK if globbing.has_magic(part) else 0)
        yield from (name for name in folders if not os.access(name, rights))


def _find_remote(pattern: str, label: str, storage_options: Mapping[str, Any]) -> Iterator[StoredFile]:
    for file_system, path in _match_remote(pattern, label, storage_options):
        try:
            information, version = repeat_request(
                lambda: (get_information(file_system, path), str(file_system.ukey(path))),  # noqa: B023 - called at once
                f"{label}: {path}: cannot be found",
                LISTING_REPEAT_S,
            )
        except OSError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            # This happens for `file://`, and for stores that show new names late.
            _log.warning("%s: a link that leads nowhere is left out of %r: %s", label, pattern, path)
            continue
        if information["type"] != "file":
            continue
        name = _make_url(pattern, file_system, path)
        if information.get("size") is None:
            raise ValueError(f"{label}: {name}: the server does not report its size; download the file first")
        yield StoredFile(
            name=name,
            size=information["size"],
            version=version,
            file_system=file_system,
            path=path,
        )


def _match_remote(pattern: str, label: str, storage_options: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """Return the file systems and paths that match a URL. As for local patterns, a dot hides a name."""
    fsspec = import_extra("fsspec", "remote", f"{label}: {pattern}")

    def match() -> list[tuple[Any, str]]:
        file_system, path = fsspec.core.url_to_fs(pattern, **storage_options)
        if not globbing.has_magic(path) or ("*" not in path and is_file(file_system, path)):
            return [(file_system, path)] if is_file(file_system, path) else []
        is_hidden_named = any(part.startswith(".") for part in path.split("/"))
        first = len(re.split(r"[^/]*[*?[]", path, maxsplit=1)[0])
        try:
            names = file_system.glob(path)
        except FileNotFoundError as error:
            if error.__cause__ is not None:  # not a missing folder: a repository or a store does not exist
                raise
            names = []
        return [
            (file_system, found)
            for found in names
            if is_hidden_named or not any(part.startswith(".") for part in found[first:].split("/"))
        ]

    try:
        return repeat_request(match, f"{label}: {pattern}: cannot be listed", LISTING_REPEAT_S)
    except (ImportError, ValueError) as error:  # the package of a protocol is missing, or there is no such protocol
        raise ValueError(f"{label}: cannot open {pattern!r}: {error}") from error


def _make_url(pattern: str, file_system: Any, path: str) -> str:
    """Return the URL of a path that matches the URL `pattern`, with the chained part (`zip://*.csv::a.zip`)."""
    url = path if is_remote(path) else str(file_system.unstrip_protocol(path))
    first, mark, rest = pattern.partition("::")
    if not mark or "::" in url:
        return url
    return f"{url}{mark}{rest}" if is_remote(first) else f"{first}{mark}{url}"


def _describe_missing(pattern: str, label: str) -> str:
    if is_remote(pattern):
        return f"{label}: no file matches {pattern!r}; check the path, and the permissions of your account"
    expanded = os.path.expanduser(pattern)  # noqa: PTH111 - a Path raises for a file `~x`
    if os.path.isdir(expanded):  # noqa: PTH112 - a Path raises for a name that is too long
        return f"{label}: {pattern!r} is a folder; write a pattern: {str(Path(pattern) / '*')!r}"
    missing = f"{label}: no file matches {pattern!r}"
    if os.path.islink(expanded) and not os.path.exists(expanded):  # noqa: PTH110, PTH114 - of names
        return f"{missing}: it is a link to {str(Path(expanded).readlink())!r}, which does not exist"
    if _LOST_SLASH.match(pattern):
        return f"{missing}; if it is a URL, give it as a string: a Path keeps one `/` of `://`"
    if _BRACES.search(pattern):
        return f"{missing}; braces have no meaning in a pattern: write `*` or a list of files"
    return (
        f"{missing} in the current directory {Path.cwd()}; start stagepipe in the folder that the path is relative to, "
        "or use an absolute path"
    )


MAX_SAMPLED_FILES: Final = 16
"""From more files, this many are read, evenly spaced. 48 reads take some milliseconds, or half a second on a disk."""
BLOCK_BYTES: Final = 1 << 16
"""A hard disk needs longer for a seek than for reading this much."""
_DIGEST_BYTES: Final = 8


def sample_contents(paths: Sequence[str], versions: Sequence[object]) -> ContentSamples | None:
    """Return a hash of the first, middle and last block of local files, and a hash of their times.

    Return None if there are no files, or if one cannot be read.
    """
    count = min(len(paths), MAX_SAMPLED_FILES)
    if not count:
        return None
    indices = [index * (len(paths) - 1) // max(count - 1, 1) for index in range(count)]
    contents = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    try:
        for index in indices:
            for block in _read_blocks(paths[index]):
                contents.update(block)
    except OSError:  # the source raises the error when it opens the file
        return None
    times = hashlib.blake2b(repr([str(versions[index]) for index in indices]).encode(), digest_size=_DIGEST_BYTES)
    return ContentSamples(contents.hexdigest(), times.hexdigest())


def _read_blocks(path: str) -> list[bytes]:
    """Return the first, the middle and the last block of a file; a small file as one block."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path would cost as much as the call
        size = os.fstat(file.fileno()).st_size
        if size <= 3 * BLOCK_BYTES:
            return [file.read()]
        return [os.pread(file.fileno(), BLOCK_BYTES, at) for at in (0, (size - BLOCK_BYTES) // 2, size - BLOCK_BYTES)]


_MAX_OPEN_FILES: Final = 64
REMOTE_BLOCK_BYTES: Final = 1 << 20
"""A remote file is read in blocks: a request takes about 50 ms, in which a fast network sends more than a block."""
_MAX_REMOTE_BLOCKS: Final = 16
_MAX_BLOCKS_A_READ: Final = 4
"""A longer range takes one request. A file that is read from start to end is read in pieces of this many blocks."""


_READ_AHEAD_BYTES: Final = 1 << 16
"""A row of a table has some tens of bytes, so a system call would take longer than copying the row."""
_MAX_SMALL_BYTES: Final = 1 << 12
"""Maximum size of a range that is read ahead."""


class RangeReader:
    """Reads ranges of bytes. It keeps local files open, and the last 16 MiB of remote files in memory.

    It reads ahead if small ranges of a local file follow one another.
    """

    def __init__(self) -> None:
        self._open_files: OrderedDict[str, int] = OrderedDict()
        self._ahead_path = ""
        """The local file of the last read."""
        self._ahead_start = 0
        self._ahead = b""
        """Bytes of that file from `_ahead_start` on; they begin or end with the bytes of the last read."""
        self._next_start = 0
        """End of the last range."""
        self._read_block = lru_cache(_MAX_REMOTE_BLOCKS)(_read_block)

    def read(self, file: StoredFile, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`.

        Raises OSError if they cannot be read, and ValueError if the file has become shorter since it was found.
        """
        if file.path == self._ahead_path:
            begin = start - self._ahead_start
            end = stop - self._ahead_start
            is_next = start == self._next_start
            self._next_start = stop
            if begin >= 0 and end <= len(self._ahead):
                return self._ahead[begin:end]
            if is_next and stop - start <= _MAX_SMALL_BYTES:
                self._ahead = self._read_local(file, start, min(start + _READ_AHEAD_BYTES, file.size))
                self._ahead_start = start
                if stop - start <= len(self._ahead):
                    return self._ahead[: stop - start]
        data = self._read_local(file, start, stop) if file.file_system is None else self._read_remote(file, start, stop)
        if len(data) != stop - start:
            raise file.make_change_error()
        if file.path != self._ahead_path and file.file_system is None:
            self._ahead_path = file.path
            self._ahead = b""
            self._next_start = stop
        return data

    def check_unchanged(self, file: StoredFile) -> None:
        """Raise ValueError if an open file has changed since it was found."""
        file.check_unchanged(self._open_files.get(file.path))

    def close(self) -> None:
        """Close all files."""
        while self._open_files:
            os.close(self._open_files.popitem()[1])

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter shutdown
            self.close()

    def _read_local(self, file: StoredFile, start: int, stop: int) -> bytes:
        descriptor = self._open_files.get(file.path)
        if descriptor is None:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                file.check_unchanged(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            self._open_files[file.path] = descriptor
            if len(self._open_files) > _MAX_OPEN_FILES:
                os.close(self._open_files.popitem(last=False)[1])
        else:
            self._open_files.move_to_end(file.path)
        data = os.pread(descriptor, stop - start, start)
        while len(data) < stop - start:  # one call reads at most 2 GiB
            more = os.pread(descriptor, stop - start - len(data), start + len(data))
            if not more:
                break
            data += more
        return data

    def _read_remote(self, file: StoredFile, start: int, stop: int) -> bytes:
        first, last = start // REMOTE_BLOCK_BYTES, max(start, stop - 1) // REMOTE_BLOCK_BYTES
        if last - first >= _MAX_BLOCKS_A_READ:
            return read_remote(file, start, stop)
        data = b"".join(self._read_block(file, number) for number in range(first, last + 1))
        offset = start - first * REMOTE_BLOCK_BYTES
        return data[offset : offset + stop - start]


def _read_block(file: StoredFile, number: int) -> bytes:
    start = number * REMOTE_BLOCK_BYTES
    stop = min(start + REMOTE_BLOCK_BYTES, file.size)
    return read_remote(file, start, stop)
