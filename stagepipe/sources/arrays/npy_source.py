"""`NpySource`: the rows of memory-mapped `.npy` files. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from stagepipe.core import SourceFiles, join_files
from stagepipe.sources.arrays.recently_used import RecentlyUsed
from stagepipe.sources.arrays.row_array_source import RowArraySource
from stagepipe.sources.arrays.row_arrays import ArrayFile, RowArrays
from stagepipe.sources.record_source import ShuffleMode
from stagepipe.sources.storage import (
    Paths,
    StoredFile,
    describe_stored_files,
    find_stored_files,
    is_remote,
    list_paths,
)

_MAX_MAPPED_FILES: Final = 256
"""Each mapped file takes a file descriptor, of which a process usually may have 1,024."""


class NpySource(RowArraySource):
    """Yield the rows of `.npy` files along their first axis, in the order of the files.

    In YAML it is `uses: stagepipe.sources.npy`. The files are memory-mapped: a row is a read-only view of the file's
    pages, which all workers share. Nothing copies it before it leaves the process that reads it.

    Args:
        path: a path or pattern, or several, whose rows follow each other: then an item is a row, an ndarray or for
            arrays of one axis a NumPy number. Or a mapping of these by field, such as `{image: "images/*.npy", label:
            labels.npy}`, of equal numbers of rows: then an item is a dict.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `blocks` shuffles
            blocks of about 1 MiB, and the rows within a few of them: less seeking on a disk.

    >>> NpySource("images.npy")[0].shape  # doctest: +SKIP
    (224, 224, 3)

    Raises ValueError if no file matches, for a file that is not `.npy` or holds Python objects, and if the files of a
    field differ in the shape or dtype of their rows, or the fields in their number.
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
            field: RowArrays([_read_header(file.path) for file in files], self._mapped.get, self.label, kept_chunks=1)
            for field, files in self._files.items()
        }

    def describe_files(self) -> SourceFiles | None:
        """Return what identifies the files of all fields."""
        return join_files([describe_stored_files(files) for files in self._files.values()])

    def _find_files(self, pattern: Paths) -> list[StoredFile]:
        for name in list_paths(pattern, self.label):
            if is_remote(name):
                raise ValueError(f"npy: {name!r} is remote and cannot be memory-mapped; download it first")
        return find_stored_files(pattern, self.label)

    @functools.cached_property
    def _mapped(self) -> RecentlyUsed[Any]:
        files = {file.path: file for files in self._files.values() for file in files}

        def map_unchanged(path: str) -> np.ndarray[Any, Any]:
            array = _map_file(path)
            files[path].check_unchanged()
            return array

        return RecentlyUsed(map_unchanged, _MAX_MAPPED_FILES)


def _read_header(path: str) -> ArrayFile:
    array = _map_file(path)
    return ArrayFile(file=path, shape=array.shape, dtype=array.dtype)


def _map_file(path: str) -> np.ndarray[Any, Any]:
    """Map a file read-only. The array is a plain ndarray: a memmap's own class would travel slower."""
    try:
        with Path(path).open("rb") as file:
            np.lib.format.read_magic(file)
        return np.asarray(np.load(path, mmap_mode="r"))
    except ValueError as error:
        raise ValueError(
            f"npy: {path}: {error}; give files that `numpy.save` wrote, of numbers or fixed strings"
        ) from error
