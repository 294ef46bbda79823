"""Sources whose records are rows of arrays, the elements along the first axis: `NpySource`, `Hdf5Source`, `ZarrSource`.

`RowArrays` are the rows of an array that may be spread over several files. `RowArraySource` is the base of all these
sources, `ArrayStoreSource` the base of sources whose files hold several named arrays.
"""

from __future__ import annotations

import functools
import os
import resource
import weakref
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from stagepipe.core import SourceFiles, closest_match, describe_files, empty, import_extra, join_files
from stagepipe.sources.record_source import RecordSource, ShuffleMode, name_place
from stagepipe.sources.stored_files import (
    Paths,
    StoredFile,
    describe_stored_files,
    find_stored_files,
    find_stores,
    is_remote,
    list_paths,
    sample_contents,
)

BLOCK_BYTES: Final = 1 << 20
"""Size of a block of rows in an array without chunks: a disk reads it almost as quickly as one row."""
_MAX_CACHED_BYTES: Final = 256 << 20
"""A larger block of compressed rows is not kept in memory: each row is read from the file."""


@dataclass(frozen=True, kw_only=True)
class ArrayFile:
    """An array in a file, as known without reading its rows."""

    file: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int = 0
    """Rows that are stored and decompressed together. 0: each row can be read separately."""

    @property
    def row_bytes(self) -> int:
        """The bytes of a row in memory."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def block_rows(self) -> int:
        """The number of rows that are quick to read together."""
        return self.chunk_rows or max(1, BLOCK_BYTES // max(1, self.row_bytes))

    @property
    def block_bytes(self) -> int:
        """The bytes of a block in memory."""
        return self.block_rows * self.row_bytes

    @property
    def is_read_by_chunks(self) -> bool:
        """Whether to read and keep whole chunks."""
        return 0 < self.chunk_rows * self.row_bytes <= _MAX_CACHED_BYTES


class RowArrays:
    """The rows of one array that is spread over several files, one file after the other.

    `open_array` returns the array of a file; it may be called again after other files were opened.
    """

    def __init__(
        self, arrays: Sequence[ArrayFile], open_array: Callable[[str], Any], label: str, *, kept_chunks: int
    ) -> None:
        """Raises ValueError for an array without rows, and for files whose rows differ in shape or dtype."""
        for array in arrays:
            _check_rows(array, arrays[0], label)
        self._arrays = arrays
        self._open_array = open_array
        self._label = label
        self._first_rows = [0, *accumulate(array.shape[0] for array in arrays)]
        self._get_chunk = functools.lru_cache(kept_chunks)(self._read_chunk)

    def __len__(self) -> int:
        return self._first_rows[-1]

    def describe(self) -> str:
        """Return the number, shape and dtype of the rows, for messages."""
        array = self._arrays[0]
        shape = f", each {'x'.join(map(str, array.shape[1:]))}" if array.shape[1:] else ""
        return f"{len(self)} rows{shape} of {array.dtype}"

    def read_rows(self, indices: Sequence[int]) -> Iterator[Any]:
        """Yield the rows of several indices: views if the file is mapped, otherwise copies."""
        for index in indices:
            number = bisect_right(self._first_rows, index) - 1
            array = self._arrays[number]
            row = index - self._first_rows[number]
            if array.is_read_by_chunks:
                chunk, row = divmod(row, array.chunk_rows)
                yield _copy_row(self._get_chunk(number, chunk)[row])
            else:
                yield self._read(array, row)

    @property
    def block_bytes(self) -> int:
        """The bytes of the largest block."""
        return max(array.block_bytes for array in self._arrays)

    def get_block_starts(self) -> list[int]:
        """Return the first index of each block of each file."""
        return [
            first + start
            for first, array in zip(self._first_rows, self._arrays, strict=False)
            for start in range(0, array.shape[0], array.block_rows)
        ]

    def _read_chunk(self, number: int, chunk: int) -> Any:
        array = self._arrays[number]
        start = chunk * array.chunk_rows
        return self._read(array, slice(start, start + array.chunk_rows))

    def _read(self, array: ArrayFile, rows: int | slice) -> Any:
        values = self._open_array(array.file)
        try:
            return values[rows]
        except Exception as error:
            place = f"{self._label}: {array.file}: row {rows.start if isinstance(rows, slice) else rows}"
            raise name_place(error, f"{place} cannot be read") from error


def _copy_row(row: Any) -> Any:
    """Copy a row out of a kept chunk into outgoing shared memory, because a stage may write into the row."""
    if not isinstance(row, np.ndarray) or row.dtype.hasobject:
        return row
    copied = empty(row.shape, row.dtype)
    copied[...] = row
    return copied


def _check_rows(array: ArrayFile, first: ArrayFile, label: str) -> None:
    if not array.shape:
        raise ValueError(f"{label}: {array.file} holds a single {array.dtype}, which has no rows; name an array")
    if (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
        raise ValueError(
            f"{label}: the rows of {array.file} are {_describe_row(array)}, but the rows of {first.file} are "
            f"{_describe_row(first)}; give files of equal rows, or a source for each and put them together with "
            "`stagepipe.sources.concat`"
        )


def _describe_row(array: ArrayFile) -> str:
    return f"{array.dtype} of shape {array.shape[1:]}"


class RowArraySource(RecordSource):
    """Records that are rows of arrays along their first axis: one row, or a dict with a row of each array.

    A subclass defines `open_rows`, which returns arrays of equal length by name; under the name "", the row itself is
    the record.
    """

    @abstractmethod
    def open_rows(self) -> Mapping[str, RowArrays]:
        """Read the structure of the files, without their rows."""

    def __len__(self) -> int:
        return len(next(iter(self._rows.values())))

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the row, or the dict of rows, of several indices."""
        columns = [array.read_rows(indices) for array in self._rows.values()]
        if "" in self._rows:
            return list(columns[0])
        names = list(self._rows)
        return [dict(zip(names, rows, strict=True)) for rows in zip(*columns, strict=True)]

    def get_block_starts(self) -> Sequence[int]:
        """Return the first record of each chunk of the array with the largest chunks in bytes."""
        return max(self._rows.values(), key=lambda rows: rows.block_bytes).get_block_starts()

    @functools.cached_property
    def _rows(self) -> Mapping[str, RowArrays]:
        rows = self.open_rows()
        if len({len(array) for array in rows.values()}) > 1:
            lengths = ", ".join(f"`{name}` {len(array)}" for name, array in rows.items())
            raise ValueError(
                f"{self.label}: the arrays differ in their number of rows: {lengths}; name arrays of equal length"
            )
        return rows


_MAX_OPEN_STORES: Final = 64


@dataclass(frozen=True, kw_only=True)
class StoredArray:
    """An array of an open store. `values[start:stop]` and `values[row]` read rows; `chunk_rows` is 0 without chunks."""

    values: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int

    def __str__(self) -> str:
        return f"({' x '.join(map(str, self.shape))}, {self.dtype})"


class ArrayStoreSource(RowArraySource):
    """The rows of named arrays in stores. A subclass finds the stores and defines `open_store`.

    Args:
        stores: the stores; each has all of the arrays.
        keys: the name of an array, a list, or a mapping by the field of the item. None: all arrays of a store.
        shuffle: see `RecordSource`. A block is a chunk of rows.
    """

    def __init__(
        self, stores: Sequence[str], keys: str | Sequence[str] | Mapping[str, str] | None, shuffle: ShuffleMode
    ) -> None:
        super().__init__(shuffle=shuffle)
        self._stores = stores
        self._keys = _name_fields(keys)
        if self._keys == {}:
            raise ValueError(f"{self.label}: `keys` is empty; name an array, or leave it out to read all")

    @abstractmethod
    def open_store(self, store: str) -> dict[str, StoredArray]:
        """Return the arrays of a store by name; a store that is itself an array uses the name ""."""

    def open_rows(self) -> dict[str, RowArrays]:
        """Find the arrays of the stores."""
        keys = self._keys
        if keys is None:
            keys = {name: name for name in self._get_arrays(self._stores[0], None)}
        described = [self._describe_arrays(store, list(keys.values())) for store in self._stores]
        files = {field: [arrays[key] for arrays in described] for field, key in keys.items()}
        largest = max((parts[0] for parts in files.values()), key=lambda array: array.block_bytes)
        return {
            field: RowArrays(
                parts,
                functools.partial(self._get_values, keys[field]),
                self.label,
                kept_chunks=self._count_kept_chunks(parts[0], largest),
            )
            for field, parts in files.items()
        }

    def _count_kept_chunks(self, array: ArrayFile, largest: ArrayFile) -> int:
        """Return how many chunks of an array to keep: all mixed blocks of `shuffle: blocks`, and one more."""
        chunks_in_a_block = 1
        if array.block_rows != largest.block_rows:
            chunks_in_a_block = 1 - (-largest.block_rows // array.block_rows)  # a block may begin within a chunk
        return (self.blocks_in_a_shuffle + 1) * chunks_in_a_block

    def _get_arrays(self, store: str, keys: Sequence[str] | None) -> dict[str, StoredArray]:
        """Return the arrays of a store. Raises ValueError if it lacks one of `keys`, or has no array."""
        found = self._open(store)
        if not found:
            raise ValueError(f"{self.label}: {store} holds no array")
        for key in keys or ():
            if key not in found:
                raise ValueError(f"{self.label}: {_describe_missing(key, found, store)}")
        return found

    def _describe_arrays(self, store: str, keys: Sequence[str]) -> dict[str, ArrayFile]:
        """Describe arrays of a store without keeping them: of thousands of files, only a few may be open."""
        arrays = self._get_arrays(store, keys)
        return {key: _describe(arrays[key], store) for key in keys}

    def _get_values(self, key: str, store: str) -> Any:
        return self._open(store)[key].values

    @functools.cached_property
    def _open(self) -> Callable[[str], dict[str, StoredArray]]:
        return functools.lru_cache(_MAX_OPEN_STORES)(self.open_store)


def _name_fields(keys: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the name of each array by its field in the item; the field "" is the item itself."""
    if keys is None:
        return None
    if isinstance(keys, str):
        return {"": keys}
    return dict(keys) if isinstance(keys, Mapping) else {key: key for key in keys}


def _describe(array: StoredArray, store: str) -> ArrayFile:
    return ArrayFile(file=store, shape=array.shape, dtype=array.dtype, chunk_rows=array.chunk_rows)


def _describe_missing(key: str, found: Mapping[str, StoredArray], store: str) -> str:
    if list(found) == [""]:
        return f"{store} is itself an array, so it has no `{key}`; remove `keys`"
    closest = closest_match(key, found)
    known = ", ".join(f"`{name}` {array}" for name, array in found.items())
    return f"{store} has no array `{key}`{f', did you mean `{closest}`?' if closest else ''}; it holds {known}"


_MAX_MAPPED_FILES: Final = 256
"""Each mapped file takes a file descriptor, and the usual limit of a process is 1,024."""


class NpySource(RowArraySource):
    """Yield the rows of `.npy` files along their first axis, in the order of the files.

    In YAML it is `uses: stagepipe.sources.npy`. The files are memory-mapped: a row is a read-only view of the file's
    pages, which all workers share, without a copy in the process that reads it.

    Args:
        path: one or several paths or patterns; an item is then a row: an ndarray, or a NumPy number for arrays of one
            axis. Or a mapping of these by field, such as `{image: "images/*.npy", label: labels.npy}`, with equal
            numbers of rows; an item is then a dict.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `blocks` shuffles
            blocks of about 1 MiB, and the rows within a few of them; this saves seeks on a disk.

    >>> NpySource("images.npy")[0].shape  # doctest: +SKIP
    (224, 224, 3)

    Raises ValueError if no file matches, a file is not `.npy` or contains Python objects, the files of a field differ
    in the shape or dtype of their rows, or the fields differ in their number of rows.
    """

    def __init__(self, path: Paths | Mapping[str, Paths], *, shuffle: ShuffleMode = False) -> None:
        super().__init__(shuffle=shuffle)
        patterns = path if isinstance(path, Mapping) else {"": path}
        self._files = {field: self._find_files(pattern) for field, pattern in patterns.items()}
        if not self._files:
            raise ValueError("npy: `path` is an empty mapping; name a file or a pattern for each field")

    def open_rows(self) -> dict[str, RowArrays]:
        """Read the headers of the files."""
        return {
            field: RowArrays([_read_header(file.path) for file in files], self._map, self.label, kept_chunks=1)
            for field, files in self._files.items()
        }

    def describe_files(self) -> SourceFiles | None:
        """Return the identity of the files of all fields."""
        return join_files([describe_stored_files(files) for files in self._files.values()])

    def _find_files(self, pattern: Paths) -> list[StoredFile]:
        for name in list_paths(pattern, self.label):
            if is_remote(name):
                raise ValueError(f"npy: {name!r} is remote and cannot be memory-mapped; download it first")
        return find_stored_files(pattern, self.label)

    @functools.cached_property
    def _map(self) -> Callable[[str], Any]:
        files = {file.path: file for files in self._files.values() for file in files}

        def map_unchanged(path: str) -> np.ndarray[Any, Any]:
            array = _map_file(path)
            files[path].check_unchanged()
            return array

        return functools.lru_cache(_MAX_MAPPED_FILES)(map_unchanged)


def _read_header(path: str) -> ArrayFile:
    array = _map_file(path)
    return ArrayFile(file=path, shape=array.shape, dtype=array.dtype)


def _map_file(path: str) -> np.ndarray[Any, Any]:
    """Map a file read-only. Return a plain ndarray, because the `memmap` class would travel more slowly."""
    try:
        with Path(path).open("rb") as file:
            np.lib.format.read_magic(file)
        return np.asarray(np.load(path, mmap_mode="r"))
    except ValueError as error:
        raise ValueError(
            f"npy: {path}: {error}; give files of numbers or fixed-length strings that `numpy.save` wrote"
        ) from error


_OTHER_OPEN_FILES: Final = 128
"""Allowance for other open files: other stores, and about 40 descriptors of a worker."""


class Hdf5Source(ArrayStoreSource):
    """Yield the rows of datasets in HDF5 files along their first axis, in the order of the files.

    In YAML it is `uses: stagepipe.sources.hdf5`. Chunked datasets are read in chunks, and each worker keeps a few.

    Args:
        path: one or several paths or patterns, such as `"data/*.h5"`. Each file contains all datasets.
        keys: the path of a dataset in the files (`train/images`); an item is then a row. Or a list of paths, or a
            mapping of them by field; an item is then a dict. None: all datasets of the files.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `blocks` shuffles
            chunks, and the rows within a few of them: a chunk is then read only a few times an epoch.

    Text is `str`. Requires h5py: `pip install 'h5py>=3.10'`.

    >>> Hdf5Source("train.h5", keys={"image": "images", "label": "labels"})[0]  # doctest: +SKIP
    {'image': array(...), 'label': 7}

    Raises ValueError if no file matches, a file lacks a dataset (the error lists those that it has), datasets differ in
    their number of rows, or a file of a virtual dataset is missing.
    """

    def __init__(
        self,
        path: Paths,
        *,
        keys: str | Sequence[str] | Mapping[str, str] | None = None,
        shuffle: ShuffleMode = False,
    ) -> None:
        import_extra("h5py", "hdf5", "the source `hdf5`")
        for name in list_paths(path, "hdf5"):
            if is_remote(name):
                raise ValueError(f"hdf5: {name!r} is remote, which h5py cannot read; download it first")
        self._files = {file.path: file for file in find_stored_files(path, "hdf5")}
        super().__init__(list(self._files), keys, shuffle)

    def describe_files(self) -> SourceFiles:
        """Return the identity of the files."""
        return describe_stored_files(list(self._files.values()))

    def open_store(self, store: str) -> dict[str, StoredArray]:
        """Open a file, and return its datasets that have rows."""
        h5py = import_extra("h5py", "hdf5", "the source `hdf5`")
        try:
            # `RowArrays` keeps whole chunks, so HDF5's own cache of them would only double the memory.
            file = h5py.File(store, "r", rdcc_nbytes=0)
        except OSError as error:
            raise ValueError(f"hdf5: {store}: {error}; give files in HDF5 format") from error
        self._files[store].check_unchanged()
        found: dict[str, StoredArray] = {}

        def add(name: str, node: Any) -> None:
            if isinstance(node, h5py.Dataset) and node.shape:
                _require_virtual_sources(node, name, store)
                found[name] = _describe_dataset(node, is_text=h5py.check_string_dtype(node.dtype) is not None)

        file.visititems(add)
        return found


def _require_virtual_sources(dataset: Any, name: str, store: str) -> None:
    """Raise ValueError for a virtual dataset with missing files, or with more files than a process may open.

    HDF5 keeps the files open, and returns the fill value for rows that it cannot read.
    """
    files = {source.file_name for source in dataset.virtual_sources()} if dataset.is_virtual else set()
    for file in files - {"."}:  # `.` is this file
        path = Path(store).parent / file
        is_pattern = "%b" in file  # any number of numbered files
        if not (is_pattern or path.exists() or Path(file).exists()):  # HDF5 looks in the current directory too
            raise ValueError(f"hdf5: {store}: the virtual dataset `{name}` needs {path}, which is missing")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and len(files) > max(limit - _OTHER_OPEN_FILES, 1):
        raise ValueError(
            f"hdf5: {store}: the virtual dataset `{name}` has {len(files):,} files, which HDF5 keeps open, but only "
            f"{limit:,} may be open (`ulimit -n`); raise it to {len(files) + 2 * _OTHER_OPEN_FILES}, or give the files "
            "themselves as `path`"
        )


def _describe_dataset(dataset: Any, *, is_text: bool) -> StoredArray:
    return StoredArray(
        values=dataset.asstr() if is_text else dataset,
        shape=dataset.shape,
        dtype=np.dtype(object) if is_text else dataset.dtype,
        chunk_rows=dataset.chunks[0] if dataset.chunks else 0,
    )


_MAX_DESCRIBED_FILES: Final = 10_000
"""Looking at this many files takes a tenth of a second. A store may have millions of chunks, each in a file."""
_METADATA_NAMES: Final = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


class ZarrSource(ArrayStoreSource):
    """Yield the rows of arrays in Zarr stores along their first axis, in the order of the stores.

    In YAML it is `uses: stagepipe.sources.zarr`. Arrays are read in chunks, and each worker keeps a few.

    Args:
        path: one or several folders or `.zip` files of stores, such as `train.zarr`, or patterns. fsspec opens URLs
            (`s3://...`).
        keys: the path of an array in a group (`train/images`); an item is then a row. Or a list of paths, or a mapping
            of them by field; an item is then a dict. None: all arrays of the group, or the array at `path`.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `blocks` shuffles
            chunks, and the rows within a few of them: a chunk is then read only a few times an epoch.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    Requires zarr: `pip install 'zarr>=3'`.

    >>> ZarrSource("train.zarr", keys=["image", "label"])[0]  # doctest: +SKIP
    {'image': array(...), 'label': 7}

    Raises ValueError if no store matches, a store lacks an array (the error lists those that it has), or arrays differ
    in their number of rows.
    """

    def __init__(
        self,
        path: Paths,
        *,
        keys: str | Sequence[str] | Mapping[str, str] | None = None,
        shuffle: ShuffleMode = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        import_extra("zarr", "zarr", "the source `zarr`")
        super().__init__(find_stores(path, "zarr", storage_options), keys, shuffle)
        self._storage_options = dict(storage_options or {})

    def describe_files(self) -> SourceFiles:
        """Return the identity of the arrays and a local store's files; for a large store, only its metadata files."""
        entries: list[tuple[str, int, int]] = []
        files: list[tuple[str, int, int]] = []
        for store in self._stores:
            arrays = self._open(store)
            entries += [(f"{store}/{name} {array}", 0, 0) for name, array in arrays.items()]
            files += _list_files(store, arrays) if not is_remote(store) else []
        files.sort()
        names, sizes, times = zip(*sorted([*entries, *files]), strict=True) if entries or files else ((), (), ())
        samples = sample_contents([path for path, _, _ in files], [time_ns for _, _, time_ns in files])
        return describe_files(names, sizes, times, samples)

    def open_store(self, store: str) -> dict[str, StoredArray]:
        """Open a store, and return its arrays."""
        zarr = import_extra("zarr", "zarr", "the source `zarr`")
        options = {"storage_options": self._storage_options} if self._storage_options else {}
        is_zip = store.endswith(".zip") and not is_remote(store)  # zarr 3 takes the path of a zip file for a folder
        try:
            opened: Any = zarr.storage.ZipStore(store, mode="r") if is_zip else store
            node = zarr.open(opened, mode="r", **options)
        except (FileNotFoundError, KeyError, ValueError) as error:
            raise ValueError(f"zarr: {store}: {error}; give the folder of a Zarr array or group") from error
        if is_zip:
            # In a reference cycle, the collector may drop the file before its owner: Python then warns of an open file.
            weakref.finalize(opened, opened._zf.close)  # noqa: SLF001 - `close` would keep the store
        if isinstance(node, zarr.Array):
            return {"": _describe_array(node)}
        members = sorted(node.members(max_depth=None))
        return {name: _describe_array(array) for name, array in members if isinstance(array, zarr.Array)}


def _describe_array(array: Any) -> StoredArray:
    chunk_rows = array.chunks[0] if array.shape else 0
    return StoredArray(values=array, shape=array.shape, dtype=array.dtype, chunk_rows=chunk_rows)


def _list_files(store: str, arrays: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return name, size and time of the files of a local store; for a large store, only of its metadata files."""
    paths = [store] if Path(store).is_file() else list(islice(_walk(store), _MAX_DESCRIBED_FILES + 1))
    if len(paths) > _MAX_DESCRIBED_FILES:
        folders = {Path(store), *(Path(store) / name for name in arrays)}
        paths = [str(folder / name) for folder in folders for name in _METADATA_NAMES if (folder / name).is_file()]
    statuses = [os.stat(path) for path in paths]  # noqa: PTH116 - of names
    return [(path, status.st_size, status.st_mtime_ns) for path, status in zip(paths, statuses, strict=True)]


def _walk(folder: str) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names)  # noqa: PTH118 - of names
