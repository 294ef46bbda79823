"""`Hdf5Source`: the rows of datasets in HDF5 files. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stagepipe.core import SourceFiles, import_extra
from stagepipe.sources.arrays.array_store_source import ArrayStoreSource, StoredArray
from stagepipe.sources.record_source import ShuffleMode
from stagepipe.sources.storage import Paths, describe_stored_files, find_stored_files, is_remote, list_paths

_OTHER_OPEN_FILES: Final = 128
"""What else a process may have open: other stores, and some 40 descriptors of a worker."""


class Hdf5Source(ArrayStoreSource):
    """Yield the rows of datasets in HDF5 files along their first axis, in the order of the files.

    In YAML it is `uses: stagepipe.sources.hdf5`. A row of a dataset with chunks is read with its chunk, of which each
    worker keeps a few.

    Args:
        path: a path or pattern, such as `"data/*.h5"`, or several. Each file holds all of the datasets.
        keys: the path of a dataset in the files (`train/images`): then an item is its row. Or a list of them, or a
            mapping of them by field: then an item is a dict. None: all datasets of the files.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `blocks` shuffles
            chunks, and the rows within a few of them: a chunk is then read only a few times an epoch.

    Text is `str`. Requires h5py: `pip install 'h5py>=3.10'`.

    >>> Hdf5Source("train.h5", keys={"image": "images", "label": "labels"})[0]  # doctest: +SKIP
    {'image': array(...), 'label': 7}

    Raises ValueError if no file matches, for a dataset that a file lacks (with those that it has), for datasets that
    differ in their number of rows, and for a virtual dataset of which a file is missing.
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
        """Return what identifies the files."""
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
    """Raise ValueError for a virtual dataset of files that are missing, or of more files than can be open.

    HDF5 keeps the files open, and gives the fill value in the place of rows that it cannot read.
    """
    files = {source.file_name for source in dataset.virtual_sources()} if dataset.is_virtual else set()
    for file in files - {"."}:  # `.`: this file
        path = Path(store).parent / file
        is_pattern = "%b" in file  # as many numbered files as there are
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
