"""Sinks of arrays: `NpzSink`, an archive per item; `NpySink`, `NpzShardSink` and `ZarrSink`, rows written in workers.

A part of `ZarrSink` has a multiple of `chunk_items` items, so two workers never write to the same chunk. A worker
writes a part as separate arrays, and the calling process moves their chunks to their final places. The arrays get their
shapes, and become readable, at the end. https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Literal

import numpy as np

from stagepipe.core import import_extra
from stagepipe.sinks.part_sink import FileTreeSink, PartPlace, PartSink, require_local
from stagepipe.sinks.stored_values import flatten_rows, flatten_to_arrays, stack_rows, to_plain_array

_ARCHIVE_NAME_PATTERN = re.compile(r"\d{6,}\.npz")
_PARTIAL_NAME_PATTERN = re.compile(r"\d{6,}\.tmp\d+")


class NpzSink:
    """Write each item to `path/000000.npz`, `path/000001.npz` ... In YAML it is `uses: stagepipe.sinks.npz`.

    `stagepipe.sinks.stored_values` describes how fields become arrays.

    Args:
        path: the folder, such as `out`, relative to the current directory; it is created if it is missing.
        compress: deflate the arrays: smaller files, but many times slower to write.
        overwrite: first delete the numbered archives of an earlier run. Without it, the folder must be empty.
        start: the number of the first item, if the folder contains items of an earlier run; `run --resume` sets it.
            None: a new run.

    A file gets its final name when it is complete, so a crash leaves no partial file under that name.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> NpzSink(folder)({"x": np.arange(3)})
    >>> np.load(f"{folder}/000000.npz")["x"]
    array([0, 1, 2])

    Raises FileExistsError for a folder that is not empty, and TypeError for an item that npz cannot store.
    """

    def __init__(
        self, path: str | Path, *, compress: bool = False, overwrite: bool = False, start: int | None = None
    ) -> None:
        self.path: Final = require_local(path)
        self.compression: Final = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        self._next_number = start or 0
        self.path.mkdir(parents=True, exist_ok=True)
        if start is not None:
            _remove_matching(self.path, _PARTIAL_NAME_PATTERN)  # left by the previous run, which was killed
        elif overwrite:
            _remove_matching(self.path, _ARCHIVE_NAME_PATTERN)
        elif any(self.path.iterdir()):
            raise FileExistsError(
                f"npz: the folder {self.path.absolute()} is not empty; use another folder, or set `overwrite` to true "
                "to delete its numbered .npz files"
            )

    def __call__(self, item: Any) -> None:
        """Write one item under the next number."""
        final_path = self.path / f"{self._next_number:06d}.npz"
        partial_path = final_path.with_suffix(f".tmp{os.getpid()}")
        try:
            write_archive(partial_path, flatten_to_arrays(item), self.compression)
            partial_path.replace(final_path)
        except OSError as error:
            raise OSError(f"npz: {final_path} cannot be written: {error.strerror or error}; free disk space") from None
        finally:
            partial_path.unlink(missing_ok=True)
        self._next_number += 1

    def close(self) -> None:
        """Do nothing, as no file is open between items."""


def write_archive(path: Path, arrays: dict[str, np.ndarray], compression: int) -> None:
    """Write an archive like `np.savez`, which takes names as keywords and so refuses a field called `file`."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _remove_matching(folder: Path, name_pattern: re.Pattern[str]) -> None:
    for file in folder.iterdir():
        if name_pattern.fullmatch(file.name):
            file.unlink()


_ALIGN_BYTES: Final = 64
_MAX_ROWS: Final = 10**18
"""The header reserves space for this number of rows, so that its length is known before the number of rows."""


class NpySink(PartSink):
    """Write arrays as rows of `path/000000.npy` ..., for memory mapping. In YAML it is `stagepipe.sinks.npy`.

    All arrays must have the shape and dtype of the first; a number is an array without axes. For several fields, use
    `stagepipe.sinks.npz_shards`.

    Args:
        path: see `PartSink`.
        options: the other arguments of `PartSink`.
        field: the field of a dict item with the array. None: the item itself.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part"
    >>> NpySink("out", field="x").write_part([{"x": np.arange(3)}, {"x": np.ones(3, int)}], path)
    >>> np.load(path).tolist()
    [[0, 1, 2], [1, 1, 1]]

    Raises ValueError for a different shape or dtype, and TypeError for objects.
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".npy"

    def __init__(self, path: str | os.PathLike[str], *, field: str | None = None, **options: Any) -> None:
        super().__init__(path, **options)
        self._field = field

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write a header, which `prepare_part` reads, and the rows."""
        rows = [self._to_array(row, item) for row, item in enumerate(items)]
        first = rows[0]
        for row, array in enumerate(rows):
            if (array.shape, array.dtype) != (first.shape, first.dtype):
                raise ValueError(
                    f"npy: row {row} of the part has shape {array.shape} and dtype {array.dtype}, the first has "
                    f"{first.shape} and {first.dtype}; a file holds rows of one kind"
                )
        with path.open("wb") as file:
            # `np.stack` keeps a single row in Fortran order, but the headers of shards say C order.
            np.lib.format.write_array(file, np.ascontiguousarray(np.stack(rows)), allow_pickle=False)

    def _to_array(self, row: int, item: Any) -> np.ndarray:
        if self._field is not None:
            if not isinstance(item, Mapping) or self._field not in item:
                found = ", ".join(map(str, item)) if isinstance(item, Mapping) else type(item).__name__
                raise ValueError(f"npy: row {row} of the part has no field `{self._field}`; it has {found}")
            item = item[self._field]
        if isinstance(item, Mapping):
            raise TypeError(
                "npy: an item is a dict; name the `field` with the array, or use stagepipe.sinks.npz_shards"
            )
        place = "" if self._field is None else f"field `{self._field}`, "
        return to_plain_array(item, f"npy: {place}row {row} of the part")

    def prepare_part(self, path: Path, kept: dict[str, Any]) -> None:
        """Check shape and dtype against the first part, and keep only the rows in the file."""
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read_header(file)
            data = file.read()
        descr = np.lib.format.dtype_to_descr(dtype)
        kind = {"shape": list(shape[1:]), "descr": descr if isinstance(descr, str) else repr(descr)}
        if kept.setdefault("kind", kind) != kind:
            raise ValueError(
                f"npy: the rows have shape {kind['shape']} and dtype {kind['descr']}, but the first part has "
                f"{kept['kind']['shape']} and {kept['kind']['descr']}"
            )
        path.write_bytes(data)

    def begin_shard(self, file: BinaryIO, kept: Mapping[str, Any]) -> None:
        """Write a header of the final length."""
        file.write(_make_header(kept["kind"], 0))

    def finish_shard(self, file: BinaryIO, parts: Sequence[PartPlace], kept: Mapping[str, Any]) -> None:
        """Write the number of rows into the header."""
        file.seek(0)
        file.write(_make_header(kept["kind"], sum(part.rows for part in parts)))


def _make_header(kind: Mapping[str, Any], rows: int) -> bytes:
    """Return the header of an npy file of version 2.0, padded so that its length does not depend on `rows`."""

    def write(count: int) -> bytes:
        descr = kind["descr"] if kind["descr"].startswith("[") else repr(kind["descr"])
        shape = "".join(f"{length}, " for length in (count, *kind["shape"]))
        return f"{{'descr': {descr}, 'fortran_order': False, 'shape': ({shape}), }}".encode("latin1")

    magic = np.lib.format.magic(2, 0)
    length = len(write(_MAX_ROWS)) + 1
    length += -(len(magic) + 4 + length) % _ALIGN_BYTES
    return magic + length.to_bytes(4, "little") + write(rows).ljust(length - 1) + b"\n"


class NpzShardSink(PartSink):
    """Write stacked items to archives `path/000000.npz` ... In YAML it is `stagepipe.sinks.npz_shards`.

    Each field becomes an array of shape (items, *shape); names and values are those of `stagepipe.sinks.npz`. A shard
    is one part of up to `shard_items` items; for large items, increase `part_bytes` too.

    Args:
        path: see `PartSink`.
        options: the other arguments of `PartSink`.
        compress: deflate the arrays: smaller files, but many times slower to write.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part"
    >>> NpzShardSink("out").write_part([{"x": np.arange(3)}, {"x": np.ones(3, int)}], path)
    >>> np.load(path)["x"].shape
    (2, 3)

    Raises ValueError for items with different fields, shapes or dtypes.
    """

    extension: ClassVar[str] = ".npz"

    def __init__(self, path: str | os.PathLike[str], *, compress: bool = False, **options: Any) -> None:
        super().__init__(path, **options)
        self._compress = compress

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Stack the fields of the items and write them."""
        rows = flatten_rows(items, sink="npz_shards")
        columns = {name: stack_rows(name, [arrays[name] for arrays in rows], sink="npz_shards") for name in rows[0]}
        write_archive(path, columns, zipfile.ZIP_DEFLATED if self._compress else zipfile.ZIP_STORED)


_METADATA_NAME: Final = "zarr.json"
_CHUNK_KEYS: Final[Any] = {"name": "default", "separator": "."}
"""A chunk is `c.0.0` in the folder of its array; with `/`, each chunk would need its own folders."""
_CODECS: Final = {"zstd": "ZstdCodec", "blosc": "BloscCodec", "gzip": "GzipCodec", "none": None}
_CHUNK_KEY_PATTERN: Final = re.compile(r"c(\.\d+)+")
_MAX_NAME_BYTES: Final = 255
"""NAME_MAX of Linux's filesystems."""
_GROUP: Final = {"attributes": {}, "zarr_format": 3, "node_type": "group"}


class ZarrSink(FileTreeSink):
    """Write each field of the items as rows of an array of a Zarr group. In YAML it is `uses: stagepipe.sinks.zarr`.

    Fields and their names are those of `stagepipe.sinks.npz`: nested names are groups, and an item that is an array is
    called `data`. All items need the same fields, with one shape and dtype per field. Text may differ in length.

    Args:
        path: the folder of the group, such as `out.zarr`, relative to the current directory; it is created if it is
            missing.
        chunk_items: rows per chunk. `part_items` becomes a multiple of it.
        compression: `zstd`, `blosc`, `gzip` or `none`.
        overwrite: first delete the arrays of an earlier run. Without it, the folder must be empty.
        part_items, part_bytes: see `PartSink`.

    The group has format 3. Readers see its arrays only after the run.

    Requires zarr: `pip install 'zarr>=3'`.

    >>> import tempfile, pathlib
    >>> part = pathlib.Path(tempfile.mkdtemp()) / "part"
    >>> ZarrSink("out", chunk_items=2).write_part([{"x": np.zeros(4)}, {"x": np.ones(4)}, {"x": np.ones(4)}], part)
    >>> sorted(file.name for file in (part / "x").iterdir())
    ['c.0.0', 'c.1.0', 'zarr.json']

    Raises TypeError and ValueError, with the field, for values that an array cannot store, for a different shape or
    dtype, and for a field that is both an array and a group (`x` and `x/y`).
    """

    part_multiple: ClassVar[int | str] = "chunk_items"
    chunk_items: int = 128  # the default is here, because the planner reads it without importing the module

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        chunk_items: int = 128,
        compression: Literal["zstd", "blosc", "gzip", "none"] = "zstd",
        overwrite: bool = False,
        part_items: int | None = None,
        part_bytes: int | str | None = None,
    ) -> None:
        super().__init__(path, overwrite=overwrite, part_items=part_items, part_bytes=part_bytes)
        import_extra("zarr", "zarr", "the sink `zarr`")
        if isinstance(chunk_items, bool) or not isinstance(chunk_items, int) or chunk_items < 1:
            raise ValueError(f"zarr: chunk_items is {chunk_items!r}; give a whole number of at least 1")
        if compression not in _CODECS:
            raise ValueError(f"zarr: compression is {compression!r}; give one of {', '.join(_CODECS)}")
        self.chunk_items = chunk_items
        self._codec = _CODECS[compression]

    def write_files(self, items: Sequence[Any], folder: Path) -> None:
        """Write the rows of each field as an array in `folder`."""
        rows = flatten_rows(items, sink="zarr")
        _check_names(rows[0])
        for name in rows[0]:
            values = _to_text(name, stack_rows(name, [arrays[name] for arrays in rows], sink="zarr"))
            try:
                self._write_array(folder / name, values)
            except (TypeError, ValueError, NotImplementedError) as error:  # Zarr has no long double
                raise TypeError(
                    f"zarr: field `{name}` has the dtype {values.dtype}, which Zarr cannot hold ({error}); convert it "
                    "in a stage before the sink"
                ) from error

    def _write_array(self, path: Path, values: np.ndarray) -> None:
        import zarr.codecs

        array = zarr.create_array(
            store=str(path),
            shape=values.shape,
            dtype=values.dtype,
            chunks=(self.chunk_items, *(max(length, 1) for length in values.shape[1:])),
            chunk_key_encoding=_CHUNK_KEYS,
            compressors=None if self._codec is None else getattr(zarr.codecs, self._codec)(),
            config={"write_empty_chunks": True},
        )
        array[...] = values

    def place_files(self, folder: Path, first_row: int, rows: int, kept: dict[str, Any]) -> Mapping[str, str]:
        """Check the arrays of a part against the first part's, and return the final places of their chunks."""
        if first_row % self.chunk_items:
            raise ValueError(
                f"zarr: {first_row:,} rows have been written, which do not fill chunks of {self.chunk_items}; set "
                "`chunk_items: 1`, or write one epoch only"
            )
        arrays = {path.parent.relative_to(folder).as_posix(): path for path in folder.rglob(_METADATA_NAME)}
        kinds = {name: _read_metadata(arrays[name]) for name in sorted(arrays)}
        first_kinds = kept.setdefault("arrays", kinds)
        if kinds != first_kinds:
            raise ValueError(f"zarr: {_describe_difference(kinds, first_kinds)}")
        first_chunk = first_row // self.chunk_items
        return {
            f"{name}/{_make_chunk_key(number, kinds[name])}": (
                f"{name}/{_make_chunk_key(first_chunk + number, kinds[name])}"
            )
            for name in kinds
            for number in range(self._count_chunks(kinds[name], rows))
        }

    def describe(self, shard_count: int, rows: int, kept: Mapping[str, Any]) -> Mapping[str, bytes]:
        """Return the metadata of the arrays and of the groups. Raises ValueError for a missing chunk."""
        del shard_count
        arrays: dict[str, dict[str, Any]] = kept.get("arrays", {})
        nodes: dict[str, dict[str, Any]] = {}
        for name, kind in arrays.items():
            self._require_chunks(name, kind, rows)
            nodes |= {group.as_posix(): _GROUP for group in Path(name).parents if group.name}
            nodes[name] = {**kind, "shape": [rows, *kind["shape"][1:]]}
        # The root has all metadata, so that readers need not list files, such as the hidden ones of a run.
        consolidated = {"kind": "inline", "must_understand": False, "metadata": dict(sorted(nodes.items()))}
        files = {f"{name}/{_METADATA_NAME}": metadata for name, metadata in nodes.items()}
        files[_METADATA_NAME] = {**_GROUP, "consolidated_metadata": consolidated}  # last: it makes the others visible
        return {name: json.dumps(metadata, indent=2).encode() for name, metadata in files.items()}

    def _require_chunks(self, name: str, kind: Mapping[str, Any], rows: int) -> None:
        folder = self.path / name
        found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        for number in range(self._count_chunks(kind, rows)):
            if (key := _make_chunk_key(number, kind)) not in found:
                raise ValueError(
                    f"zarr: the chunk {self.path / name / key} is missing; put the file back and --resume, or start "
                    "over with `overwrite: true`"
                )

    def may_be_placed(self, name: str) -> bool:
        """Whether this is the name of a chunk."""
        return _CHUNK_KEY_PATTERN.fullmatch(name) is not None

    def list_own(self, recorded_names: Collection[str]) -> list[Path]:
        """Return the arrays and groups. Ignores recorded names, because such a folder may now belong to the user."""
        del recorded_names
        return [path for path in self.path.iterdir() if self.owns(path)]

    def _count_chunks(self, kind: Mapping[str, Any], rows: int) -> int:
        """Return the number of chunks of `rows` rows; 0 if a row has no elements."""
        return 0 if 0 in kind["shape"][1:] else -(-rows // self.chunk_items)

    def owns(self, path: Path) -> bool:
        """Whether this is the metadata of a group, an array, or a folder that contains only arrays."""
        return path.name == _METADATA_NAME or (path.is_dir() and all(_iter_is_zarr(path)))


def _iter_is_zarr(folder: Path) -> Iterator[bool]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _iter_is_zarr(path)
        else:
            yield path.name == _METADATA_NAME or _CHUNK_KEY_PATTERN.fullmatch(path.name) is not None


def _check_names(names: Mapping[str, Any]) -> None:
    """Raise ValueError for an invalid name, and for an array inside another one. `names` are the fields of all rows."""
    for name in names:
        if not all(map(_is_folder_name, name.split("/"))):
            raise ValueError(
                f"zarr: row 0 of the part: the field `{_shorten(name)}` cannot be the name of an array; rename it in a "
                "stage before the sink"
            )
        parent = next((group.as_posix() for group in Path(name).parents if group.as_posix() in names), None)
        if parent is not None:
            raise ValueError(
                f"zarr: row 0 of the part: the field `{parent}` is an array, so it cannot be a group for `{name}`; "
                "rename one in a stage before the sink"
            )


def _is_folder_name(part: str) -> bool:
    try:
        length = len(part.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    is_hidden = part.startswith((".", "__"))
    return 0 < length <= _MAX_NAME_BYTES and not is_hidden and "\0" not in part and part != _METADATA_NAME


def _shorten(name: str) -> str:
    text = ascii(name)[1:-1] if not name.isprintable() else name
    return text if len(text) <= 80 else f"{text[:80]}..."  # noqa: PLR2004 - a name in a message


def _to_text(name: str, values: np.ndarray) -> np.ndarray:
    """Return text as Zarr's variable-length strings, and other values unchanged."""
    if values.dtype.kind != "U":
        return values
    if not hasattr(np.dtypes, "StringDType"):
        raise TypeError(f"zarr: field `{name}` is text, which needs NumPy 2; update it, or drop the field")
    return values.astype(np.dtypes.StringDType())


def _read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a part's array without its number of rows."""
    metadata: dict[str, Any] = json.loads(path.read_bytes())
    metadata["shape"][0] = 0
    return metadata


def _make_chunk_key(number: int, kind: Mapping[str, Any]) -> str:
    return ".".join(["c", str(number), *("0" for _ in kind["shape"][1:])])


def _describe_difference(kinds: Mapping[str, Any], first_kinds: Mapping[str, Any]) -> str:
    if kinds.keys() != first_kinds.keys():
        return f"the fields are {', '.join(kinds)}, but the fields of the first part are {', '.join(first_kinds)}"
    name = next(name for name in kinds if kinds[name] != first_kinds[name])
    found, first = (f"shape {k[name]['shape'][1:]} and dtype {k[name]['data_type']}" for k in (kinds, first_kinds))
    return f"field `{name}` has rows of {found}, but the first part has {first}; convert it in a stage before the sink"
