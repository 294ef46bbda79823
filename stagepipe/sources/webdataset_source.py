"""`WebdatasetSource`: the samples of tar shards."""

from __future__ import annotations

import io
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, cast

import numpy as np

from stagepipe.sources.line_sources import ByteRangeSource
from stagepipe.sources.record_source import ShuffleMode, check_columns, describe_error
from stagepipe.sources.source_cache import Bounds, decompress_into_cache
from stagepipe.sources.stored_files import Paths, StoredFile

if TYPE_CHECKING:
    import tarfile

_MEMBER_NAME: Final = re.compile(r"(?!__[^/]*__/)((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
"""The key of a sample, and its field: all after the first dot of the file's name. Files in `__meta__/` do not match."""

_HEADER_BYTES: Final = 512
_CHECKED_END_BYTES: Final = 1 << 16
"""More than the padding of a `tar` archive, which is up to 10 kB."""


class WebdatasetSource(ByteRangeSource):
    """Yield a dict for each sample of tar files in WebDataset format, in file and sample order.

    In YAML it is `uses: stagepipe.sources.webdataset`. A sample is a series of members with the same name up to the
    first dot: `0007.jpg` and `0007.cls` give `{"__key__": "0007", "jpg": bytes, "cls": int}`.

    Args:
        path: one or several paths or patterns: `"shards/train-*.tar"`. fsspec opens URLs (`s3://...`). Compressed files
            (`.tar.gz`) are decompressed once, into the cache folder.
        columns: the fields to read. None: all.
        decode: decode `json` fields, `txt` and `text` to `str`, `cls` and `index` to `int`, `npy` to an array. Other
            fields are `bytes`; without `decode`, all are.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            blocks of about 1 MiB, and the samples of four of them; faster for URLs.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> sorted(WebdatasetSource("shards/*.tar")[0])  # doctest: +SKIP
    ['__key__', 'cls', 'jpg']

    Raises ValueError if no file matches, a file is not a tar file, the members of a sample are not consecutive, or a
    sample lacks a field of `columns`.
    """

    index_kind = "webdataset, adjacent members"

    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | None = None,
        decode: bool = True,
        shuffle: ShuffleMode = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, shuffle=shuffle, storage_options=storage_options)
        self._columns = None if columns is None else list(columns)
        self._decode = decode

    def prepare_file(self, file: StoredFile) -> StoredFile:
        """Return the decompressed copy of a compressed file."""
        return decompress_into_cache(file)

    def find_bounds(self, file: StoredFile) -> Bounds:
        """Return the start of each sample of a tar file."""
        import tarfile  # takes 12 ms, which processes without tar files need not spend

        starts = array("q")
        key_hashes = array("q")
        last_key, end = None, 0
        with file.open() as content:
            try:
                with tarfile.open(fileobj=content, mode="r:") as archive:
                    for member, name in _iterate_members(archive):
                        end = archive.offset
                        if name is not None and name[1] != last_key:
                            last_key = name[1]
                            starts.append(member.offset)
                            key_hashes.append(_hash_key(last_key))
                    content.seek(archive.offset)
                    _check_end(content.read(_CHECKED_END_BYTES), archive.offset)
                _check_keys(content, key_hashes)
            except tarfile.TarError as error:
                raise ValueError(f"not a whole tar file: {error}") from error
        if end and not starts:
            hint = "a dot separates a sample's key from its field, as in `0007.jpg`"
            raise ValueError(f"no member is part of a sample; {hint}")
        return np.array([*starts, end] if starts else [0], np.int64)

    def parse(self, data: bytes, file_number: int) -> dict[str, Any]:  # noqa: ARG002 - the signature of every source
        """Return a sample."""
        sample: dict[str, Any] = {}
        fields: set[str] = set()
        for member, content, name in _read_fields(data):
            if not sample:
                sample["__key__"] = name[1]
            field = name[2].lower()
            if field in fields:
                raise ValueError(f"sample {name[1]!r} has two members `.{field}`; give each sample its own name")
            fields.add(field)
            if self._columns is None or field in self._columns:
                sample[field] = self._decode_field(member.name, field, content)
        if self._columns is not None:
            check_columns(self._columns, sorted(fields), f"sample {sample['__key__']!r}")
        return sample

    def _decode_field(self, name: str, field: str, content: bytes) -> Any:
        decode = _DECODERS.get(field.rpartition(".")[2]) if self._decode else None
        if decode is None:
            return content
        try:
            return decode(content)
        except Exception as error:
            reason = describe_error(error)
            raise ValueError(f"{name}: cannot be decoded ({reason}); `decode: false` leaves it as bytes") from error

    def describe_place(self, file: StoredFile, start: int) -> str:  # noqa: ARG002 - that of `ByteRangeSource`
        """Return the place of a sample in its file."""
        return f", byte {start}"


def _check_end(data: bytes, offset: int) -> None:
    """Raise ReadError unless the archive ends after its last member (at `offset`), with only zeros in `data`."""
    import tarfile

    if not data:
        raise tarfile.ReadError(f"it has no end-of-archive mark at byte {offset}: it was cut, or is being written")
    if data[:_HEADER_BYTES].strip(b"\0"):
        raise tarfile.ReadError(f"a member's header ends early, at byte {offset}")
    if data.strip(b"\0"):
        raise tarfile.ReadError(f"more data follows its end at byte {offset}; do not join tar files with `cat`")


def _iterate_members(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, re.Match[str] | None]]:
    """Yield the regular files of a tar file, with the parts of their names; None for a file outside of samples.

    During the iteration, `archive.offset` is the start of the next member. Raises ValueError for a member with the name
    of a field that is not a file, such as a link: its content is elsewhere.
    """
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # it would keep 1 kB a member
        name = _MEMBER_NAME.fullmatch(member.name)
        if member.isreg():
            yield member, name
        elif name is not None and not member.isdir():
            is_link = member.islnk() or member.issym()
            kind = f"a link to {member.linkname}" if is_link else f"not a regular file (type {member.type!r})"
            hint = "write the shard with `tar --dereference --hard-dereference`"
            raise ValueError(f"{member.name} is {kind}; {hint}")


def _hash_key(key: str) -> int:
    """Return a number for a key, because a set of a million keys would take 100 MB. `./0` equals `0`."""
    return hash(key.removeprefix("./"))


def _check_keys(content: BinaryIO, hashes: array[int]) -> None:
    """Raise ValueError if two samples of a tar file have the same key: the members of a sample must be adjacent."""
    import tarfile

    unique, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    if len(unique) == len(hashes):
        return
    repeated = set(unique[counts > 1].tolist())
    seen: dict[str, str] = {}
    last_key = None
    content.seek(0)
    with tarfile.open(fileobj=content, mode="r:") as archive:
        for member, name in _iterate_members(archive):
            if name is None:
                continue
            key = name[1].removeprefix("./")
            if key in seen and name[1] != last_key:
                raise ValueError(
                    f"the members of sample {key!r} do not follow each other: {member.name} (byte {member.offset}) "
                    f"comes after other samples, {seen[key]} before them; write them one after the other, as "
                    "`tar --sort=name` does, and give each sample its own name"
                )
            last_key = name[1]
            if _hash_key(key) in repeated:
                seen[key] = member.name


def _read_fields(data: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes, re.Match[str]]]:
    """Yield the members of a sample, with their content and the parts of their name."""
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member, name in _iterate_members(archive):
            if name is None:
                continue
            if member.issparse():
                yield member, cast("IO[bytes]", archive.extractfile(member)).read(), name
            else:
                yield member, data[member.offset_data : member.offset_data + member.size], name


def _load_array(content: bytes) -> Any:
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)  # `load` would also accept archives of several arrays
    file.seek(0)
    return np.load(file, allow_pickle=False)


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "json": json.loads,
    "txt": bytes.decode,
    "text": bytes.decode,
    "cls": int,
    "index": int,
    "npy": _load_array,
}
