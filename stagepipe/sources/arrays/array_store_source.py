"""`ArrayStoreSource`: the base of sources whose files hold several arrays by name. Runs where it is built and read."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stagepipe.core import closest_match
from stagepipe.sources.arrays.recently_used import RecentlyUsed
from stagepipe.sources.arrays.row_array_source import RowArraySource
from stagepipe.sources.arrays.row_arrays import ArrayFile, RowArrays
from stagepipe.sources.record_source import ShuffleMode

_MAX_OPEN_STORES: Final = 64


@dataclass(frozen=True, kw_only=True)
class StoredArray:
    """An array of an open store. `values[start:stop]` and `values[row]` read rows; 0 `chunk_rows`: without chunks."""

    values: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int

    def __str__(self) -> str:
        return f"({' x '.join(map(str, self.shape))}, {self.dtype})"


class ArrayStoreSource(RowArraySource):
    """The rows of arrays that lie in stores by their names. A subclass finds the stores, and defines `open_store`.

    Args:
        stores: the stores; each holds all of the arrays.
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
        """Return the arrays of a store by name; one that is itself an array has the name ""."""

    def open_rows(self) -> dict[str, RowArrays]:
        """Read what arrays the stores hold."""
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
        """Return how many chunks of an array hold the rows of the blocks that `shuffle: blocks` mixes, and one more."""
        chunks_in_a_block = 1
        if array.block_rows != largest.block_rows:
            chunks_in_a_block = 1 - (-largest.block_rows // array.block_rows)  # a block may begin within a chunk
        return (self.blocks_in_a_shuffle + 1) * chunks_in_a_block

    def _get_arrays(self, store: str, keys: Sequence[str] | None) -> dict[str, StoredArray]:
        """Return the arrays of a store. Raises ValueError if it lacks one of `keys`, or has none."""
        found = self._opened.get(store)
        if not found:
            raise ValueError(f"{self.label}: {store} holds no array")
        for key in keys or ():
            if key not in found:
                raise ValueError(f"{self.label}: {_describe_missing(key, found, store)}")
        return found

    def _describe_arrays(self, store: str, keys: Sequence[str]) -> dict[str, ArrayFile]:
        """Describe arrays of a store. Keeps no array: of thousands of files, only a few may be open."""
        arrays = self._get_arrays(store, keys)
        return {key: _describe(arrays[key], store) for key in keys}

    def _get_values(self, key: str, store: str) -> Any:
        return self._opened.get(store)[key].values

    @functools.cached_property
    def _opened(self) -> RecentlyUsed[dict[str, StoredArray]]:
        return RecentlyUsed(self.open_store, _MAX_OPEN_STORES)


def _name_fields(keys: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the name of each array by the field of the item that its row becomes; "" is the item itself."""
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
