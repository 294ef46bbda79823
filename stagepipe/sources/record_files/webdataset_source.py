"""`WebdatasetSource`: the samples of tar shards. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stagepipe.sources.columns import check_columns
from stagepipe.sources.record_files.byte_range_source import ByteRangeSource
from stagepipe.sources.record_source import ShuffleMode
from stagepipe.sources.storage import Bounds, Paths, StoredFile, decompress_into_cache

if TYPE_CHECKING:
    import tarfile

_MEMBER_NAME: Final = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")
"""The key of a sample, and the name of a field: all after the first dot of the file's name."""

_HEADER_BYTES: Final = 512
_CHECKED_END_BYTES: Final = 1 << 16
"""More than what `tar` pads an archive with: up to 10 kB."""


class WebdatasetSource(ByteRangeSource):
    """Yield a dict for each sample of tar files in the format of WebDataset, in the order of the files and samples.

    In YAML it is `uses: stagepipe.sources.webdataset`. A sample is a run of members with the same name up to the first
    dot; `0007.jpg` and `0007.cls` give `{"__key__": "0007", "jpg": bytes, "cls": int}`.

    Args:
        path: a path or pattern, or several: `"shards/train-*.tar"`. A URL (`s3://...`) is opened by fsspec. A
            compressed file (`.tar.gz`) is decompressed once, into the cache folder.
        columns: the fields to read. None: all.
        decode: decode `json` fields, `txt` and `text` to `str`, `cls` and `index` to `int`, `npy` to an array. Other
            fields, and all without it, are `bytes`.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            blocks of about 1 MiB, and the samples of four of them: quicker for URLs.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> sorted(WebdatasetSource("shards/*.tar")[0])  # doctest: +SKIP
    ['__key__', 'cls', 'jpg']

    Raises ValueError if no file matches, for a file that is no tar file, and for a sample without a field of `columns`.
    """

    index_kind = "webdataset"

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
        """Return where the samples of a tar file begin."""
        import tarfile  # 12 ms, which processes without tar files need not spend

        starts: list[int] = []
        last_key, end = None, 0
        with file.open() as content:
            try:
                with tarfile.open(fileobj=content, mode="r:") as archive:
                    for member in _iterate_members(archive):
                        end = archive.offset
                        name = _MEMBER_NAME.fullmatch(member.name)
                        if name is not None and name[1] != last_key:
                            starts.append(member.offset)
                            last_key = name[1]
                    content.seek(archive.offset)
                    _check_end(content.read(_CHECKED_END_BYTES), archive.offset)
            except tarfile.TarError as error:
                raise ValueError(f"webdataset: {file.name}: not a whole tar file: {error}") from error
            except ValueError as error:
                raise ValueError(f"webdataset: {file.name}: {error}") from error
        if end and not starts:
            hint = "a dot separates a sample's key from its field, as in `0007.jpg`"
            raise ValueError(f"webdataset: {file.name}: no member is part of a sample; {hint}")
        return np.array([*starts, end] if starts else [0], np.int64)

    def parse(self, data: bytes, file_number: int) -> dict[str, Any]:  # noqa: ARG002 - the signature of every source
        """Return a sample."""
        sample: dict[str, Any] = {}
        fields = set()
        for member, content, name in _read_fields(data):
            if not sample:
                sample["__key__"] = name[1]
            field = name[2].lower()
            if field in fields:
                raise ValueError(f"sample {name[1]!r} has two members `.{field}`; give each sample a name of its own")
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
        except ValueError as error:
            raise ValueError(f"{name}: cannot be decoded ({error}); `decode: false` leaves it as bytes") from error

    def describe_place(self, file: StoredFile, start: int) -> str:  # noqa: ARG002 - that of `ByteRangeSource`
        """Return the place of a sample in its file."""
        return f", byte {start}"


def _check_end(data: bytes, offset: int) -> None:
    """Raise ReadError unless `data`, what follows the last member at `offset`, is the end of a tar file: only zeros."""
    import tarfile

    if not data:
        raise tarfile.ReadError(f"it has no end-of-archive mark at byte {offset}: it was cut, or is being written")
    if data[:_HEADER_BYTES].strip(b"\0"):
        raise tarfile.ReadError(f"a member's header ends early, at byte {offset}")
    if data.strip(b"\0"):
        raise tarfile.ReadError(f"more data follows its end at byte {offset}; do not join tar files by `cat`")


def _iterate_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of a tar file. Meanwhile, `archive.offset` is where the next member begins.

    Raises ValueError for a link with the name of a field: its content is elsewhere.
    """
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # it would keep 1 kB a member
        if member.isreg():
            yield member
        elif (member.islnk() or member.issym()) and _MEMBER_NAME.fullmatch(member.name):
            hint = "write the shard with `tar --dereference --hard-dereference`"
            raise ValueError(f"{member.name} is a link to {member.linkname}; {hint}")


def _read_fields(data: bytes) -> Iterator[tuple[tarfile.TarInfo, bytes, re.Match[str]]]:
    """Yield the members of a sample, with their content and the parts of their name."""
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in _iterate_members(archive):
            name = _MEMBER_NAME.fullmatch(member.name)
            if name is not None:
                yield member, data[member.offset_data : member.offset_data + member.size], name


def _load_array(content: bytes) -> Any:
    return np.load(io.BytesIO(content), allow_pickle=False)


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "json": json.loads,
    "txt": bytes.decode,
    "text": bytes.decode,
    "cls": int,
    "index": int,
    "npy": _load_array,
}
