"""Identifies the data of a source: the number of its items, and its files. Pure values, made in the source's process.

A saved position counts items, so it is wrong once the data has changed. A state holds the identity of the source, and a
resume compares it (`stagepipe.engine.state`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

_MAX_LISTED_FILES: Final = 8
"""Up to this number, a state lists each file (60 bytes), so that a message can name the files that changed."""
_HASH_CHARS: Final = 16


class ContentSamples(msgspec.Struct, frozen=True):
    """Hashes of some blocks of some files, and of the times of these files. See `stagepipe.sources.stored_files`."""

    blocks: str
    versions: str


class SourceFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a source. `contents` is a hash of their names and sizes, `versions` of their times or tags."""

    count: int
    contents: str
    versions: str
    listed: list[tuple[str, int, str]]
    """Name, size in bytes and version of each file; empty if there are many."""
    samples: ContentSamples | None = None
    """None for remote files, and in the states of earlier versions."""


class SourceIdentity(msgspec.Struct, frozen=True):
    """The number of items of a source, before a limit and for all ranks together, and its files; None if unknown."""

    items: int | None = None
    files: SourceFiles | None = None

    def find_difference(self, other: SourceIdentity) -> Literal["", "items", "files"]:
        """Return the difference that shows other data behind the same source: the number of items, or the files.

        Files that one side does not know make no difference. Times make none either, because copies have other times.
        """
        if self.items != other.items:
            return "items"
        has_other_files = self.files and other.files and self.files.contents != other.files.contents
        return "files" if has_other_files else ""


def describe_files(
    names: Sequence[str],
    sizes: Iterable[int],
    versions: Iterable[object],
    samples: ContentSamples | None = None,
) -> SourceFiles:
    """Return the identity of files. Names are relative to their common folder, which may differ on a resume.

    >>> describe_files(["/data/a.csv", "/data/b.csv"], [10, 20], [1, 1]).listed
    [('a.csv', 10, '1'), ('b.csv', 20, '1')]
    """
    folder_chars = _count_common_chars(min(names, default=""), max(names, default=""))
    is_listed = len(names) <= _MAX_LISTED_FILES
    listed: list[tuple[str, int, str]] = []
    contents, all_versions = hashlib.sha256(), hashlib.sha256()
    for name, size, version in zip(names, sizes, versions, strict=True):
        file = (name[folder_chars:], int(size), str(version))
        contents.update(f"{file[0]}\n{file[1]}\n".encode(errors="surrogateescape"))
        all_versions.update(f"{file[2]}\n".encode())
        if is_listed:
            listed.append((file[0].encode(errors="replace").decode(), *file[1:]))
    digests = [digest.hexdigest()[:_HASH_CHARS] for digest in (contents, all_versions)]
    return SourceFiles(count=len(names), contents=digests[0], versions=digests[1], listed=listed, samples=samples)


def _count_common_chars(first: str, last: str) -> int:
    """Return the length of the common folder of two names. All names that sort between them begin with it."""
    same = next((index for index, pair in enumerate(zip(first, last, strict=False)) if len(set(pair)) > 1), None)
    return first[:same].rfind("/") + 1


def join_files(parts: Sequence[SourceFiles | None]) -> SourceFiles | None:
    """Combine the files of several sources; None if no source has files."""
    known = [part for part in parts if part is not None]
    if len(known) < 2:  # noqa: PLR2004 - one is already whole
        return known[0] if known else None
    listed = [file for part in known for file in part.listed]
    count = sum(part.count for part in known)
    return SourceFiles(
        count=count,
        contents=_hash_all(part.contents for part in known),
        versions=_hash_all(part.versions for part in known),
        listed=listed if len(listed) == count <= _MAX_LISTED_FILES else [],
        samples=_join_samples(known),
    )


def _join_samples(parts: Sequence[SourceFiles]) -> ContentSamples | None:
    """Combine the samples of all parts. A part without samples contributes all its versions."""
    if all(part.samples is None for part in parts):
        return None
    return ContentSamples(
        _hash_all("" if part.samples is None else part.samples.blocks for part in parts),
        _hash_all(part.versions if part.samples is None else part.samples.versions for part in parts),
    )


def _hash_all(texts: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(texts).encode()).hexdigest()[:_HASH_CHARS]
