"""`ZarrSource`: the rows of Zarr arrays. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from stagepipe.core import SourceFiles, describe_files, import_extra
from stagepipe.sources.arrays.array_store_source import ArrayStoreSource, StoredArray
from stagepipe.sources.record_source import ShuffleMode
from stagepipe.sources.storage import Paths, find_stores, is_remote, sample_contents

_MAX_DESCRIBED_FILES: Final = 10_000
"""Looking at so many files takes a tenth of a second. A store may have millions of chunks, each a file."""
_METADATA_NAMES: Final = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


class ZarrSource(ArrayStoreSource):
    """Yield the rows of arrays in Zarr stores along their first axis, in the order of the stores.

    In YAML it is `uses: stagepipe.sources.zarr`. A row is read with its chunk, of which each worker keeps a few.

    Args:
        path: the folder or `.zip` of a store, such as `train.zarr`, a pattern, or several of them. A URL
            (`s3://...`) is opened by fsspec.
        keys: the path of an array in a group (`train/images`): then an item is its row. Or a list of them, or a mapping
            of them by field: then an item is a dict. None: all arrays of the group, or the array that `path` is.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `blocks` shuffles
            chunks, and the rows within a few of them: a chunk is then read only a few times an epoch.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    Requires zarr: `pip install 'zarr>=3'`.

    >>> ZarrSource("train.zarr", keys=["image", "label"])[0]  # doctest: +SKIP
    {'image': array(...), 'label': 7}

    Raises ValueError if no store matches, for an array that a store lacks (with those that it has), and for arrays
    that differ in their number of rows.
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
        """Return what identifies the arrays, and the files of a local store: of a large one, those of its metadata."""
        entries: list[tuple[str, int, int]] = []
        files: list[tuple[str, int, int]] = []
        for store in self._stores:
            arrays = self._opened.get(store)
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
        is_zip = store.endswith(".zip") and not is_remote(store)  # zarr 3 takes the path of one for a folder
        try:
            opened: Any = zarr.storage.ZipStore(store, mode="r") if is_zip else store
            node = zarr.open(opened, mode="r", **options)
        except (FileNotFoundError, KeyError, ValueError) as error:
            raise ValueError(f"zarr: {store}: {error}; give the folder of a Zarr array or group") from error
        if is_zip:
            # In a cycle, the collector may drop the file before its owner: Python then warns of a file left open.
            weakref.finalize(opened, opened._zf.close)  # noqa: SLF001 - `close` would keep the store
        if isinstance(node, zarr.Array):
            return {"": _describe_array(node)}
        members = sorted(node.members(max_depth=None))
        return {name: _describe_array(array) for name, array in members if isinstance(array, zarr.Array)}


def _describe_array(array: Any) -> StoredArray:
    chunk_rows = array.chunks[0] if array.shape else 0
    return StoredArray(values=array, shape=array.shape, dtype=array.dtype, chunk_rows=chunk_rows)


def _list_files(store: str, arrays: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return name, size and time of the files of a local store; of a large one, only of what describes its arrays."""
    paths = [store] if Path(store).is_file() else list(islice(_walk(store), _MAX_DESCRIBED_FILES + 1))
    if len(paths) > _MAX_DESCRIBED_FILES:
        folders = {Path(store), *(Path(store) / name for name in arrays)}
        paths = [str(folder / name) for folder in folders for name in _METADATA_NAMES if (folder / name).is_file()]
    statuses = [os.stat(path) for path in paths]  # noqa: PTH116 - of names
    return [(path, status.st_size, status.st_mtime_ns) for path, status in zip(paths, statuses, strict=True)]


def _walk(folder: str) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names)  # noqa: PTH118 - of names
