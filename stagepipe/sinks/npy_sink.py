"""`NpySink`: writes items that are arrays of one shape as rows of `.npy` files. `NpzShardSink`: many items per archive.

Both write in workers.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

import numpy as np

from stagepipe.sinks.npz_sink import write_archive
from stagepipe.sinks.part_sink import PartPlace, PartSink
from stagepipe.sinks.stored_values import flatten_rows, stack_rows, to_plain_array

_ALIGN_BYTES: Final = 64
_MAX_ROWS: Final = 10**18
"""The header has room for so many rows, so that its length is known before the rows are."""


class NpySink(PartSink):
    """Write arrays as rows of `path/000000.npy` ..., for `np.load(..., mmap_mode="r")`. YAML: `stagepipe.sinks.npy`.

    All arrays have the shape and dtype of the first one; a number is an array without axes. For several fields, use
    `stagepipe.sinks.npz_shards`.

    Args:
        path: see `PartSink`.
        options: the other arguments of `PartSink`.
        field: the field of a dict item that is the array. None: the item itself.

    Raises ValueError for another shape or dtype, and TypeError for objects.
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".npy"

    def __init__(self, path: str | os.PathLike[str], *, field: str | None = None, **options: Any) -> None:
        super().__init__(path, **options)
        self._field = field

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write a header and the rows; the header stays here, `prepare_part` reads it."""
        rows = [self._to_array(row, item) for row, item in enumerate(items)]
        first = rows[0]
        for row, array in enumerate(rows):
            if (array.shape, array.dtype) != (first.shape, first.dtype):
                raise ValueError(
                    f"npy: row {row} of the part has shape {array.shape} and dtype {array.dtype}, the first has "
                    f"{first.shape} and {first.dtype}; a file holds rows of one kind"
                )
        with path.open("wb") as file:
            # One row in Fortran order stays so in `np.stack`, but the headers of shards say C order.
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
        """Check shape and dtype against the first part's, and leave the rows alone in the file."""
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
    """Write the items of a part stacked in one archive, `path/000000.npz` ... In YAML: `stagepipe.sinks.npz_shards`.

    Each field becomes an array with a first axis of one row per item; names and values are those of
    `stagepipe.sinks.npz`. A shard is one part of up to `shard_items` items; raise `part_bytes` too if they are large.

    Args:
        path: see `PartSink`.
        options: the other arguments of `PartSink`.
        compress: deflate the arrays. Files get smaller, and writing gets many times slower.

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
