"""Chunks: consecutive plain items in one message, pickled together.

An item is plain if it is exactly a number, a string, bytes, None or a small array, or a dict, list or tuple of these.
Only pickle's and NumPy's code runs when it is pickled and unpickled, so this cannot fail and cannot kill a process.
Pickling forty small dicts together takes a third of the time of pickling each. Small arrays are copied when they are
held, stacked by name, dtype and shape, and returned as rows. Per array this costs a tenth of its pickle, and a row of
a stack costs a quarter of a separate array. Only dtypes that one character defines take part. Two items of a chunk
never share a mutable object.

A dropped item (SKIP) among the others is a tombstone.

A chunk that exceeds a packet goes into a block. Rows of 2 kB need a packet each, which costs both sides 30 us of CPU
time; in a block, fifteen rows share a packet. The reader copies the rows, so that a row that the user keeps does not
keep the block.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy import ndarray

from stagepipe.core import SKIP, Key, TransportError
from stagepipe.transport.memory import Lease, SharedMemoryPool
from stagepipe.transport.packet import INLINE_ARENA, MAX_ENTRY_BYTES, Entry, PacketFlag

AnyArray = np.ndarray[Any, Any]

_DTYPES = frozenset(map(np.dtype, "?bBhHiIlLqQefdgFDG"))
"""Numbers in native byte order. Equal dtypes may differ in their metadata, which must not be lost."""
_MAX_DIMENSIONS = 4
_ARRAY_BYTES = 52
"""The most bytes that an array takes in addition to its data: layout, index of its item, dict entry for both."""

ArrayLayout = tuple[Any, str, tuple[int, ...]]
"""Place in the item (a dict key, a position, or None if the item is the array), dtype character, shape."""
ArrayColumns = dict[ArrayLayout, tuple[list[int], bytes]]
"""By layout: the positions of the items in the chunk, and the concatenated bytes of their arrays."""


class ArrayItem(NamedTuple):
    """A held item. `value` has None in place of each array; `arrays` has the layout and bytes of each array."""

    value: Any
    arrays: list[tuple[ArrayLayout, bytes]]


def measure_arrays(arrays: Sequence[AnyArray]) -> int:
    """Return the most bytes that the arrays of an item take in a chunk; 0 if the item cannot join a chunk.

    Each array must be C-contiguous. The item must not hold one array twice, because it must arrive as one object.
    """
    total = 0
    for array in arrays:
        nbytes = array.nbytes
        dtype = array.dtype
        if (
            not nbytes
            or not 0 < array.ndim <= _MAX_DIMENSIONS
            or dtype not in _DTYPES
            or dtype.metadata is not None
            or not array.flags.c_contiguous
        ):
            return 0
        total += _ARRAY_BYTES + nbytes
    return total if len(arrays) == 1 or len(set(map(id, arrays))) == len(arrays) else 0


def hold_arrays(item: Any) -> ArrayItem:
    """Copy an item with measured arrays. Its owner may change the original from now on."""
    kind = type(item)
    if kind is np.ndarray:
        return ArrayItem(None, [((None, item.dtype.char, item.shape), item.tobytes())])
    value: Any = item.copy() if kind is dict else list(item)
    arrays: list[tuple[ArrayLayout, bytes]] = []
    pairs: Iterable[tuple[Any, Any]] = item.items() if kind is dict else enumerate(item)
    for name, part in pairs:
        if type(part) is np.ndarray:
            arrays.append(((name, part.dtype.char, part.shape), part.tobytes()))
            value[name] = None
    return ArrayItem(tuple(value) if kind is tuple else value, arrays)


def take_arrays(held: Sequence[Any]) -> tuple[list[Any], ArrayColumns]:
    """Return the values of held items, with None in place of each array, and the arrays."""
    values = list(held)
    parts: dict[ArrayLayout, tuple[list[int], list[bytes]]] = {}
    for index, item in enumerate(held):
        if type(item) is ArrayItem:
            values[index] = item.value
            for layout, data in item.arrays:
                column = parts.get(layout)
                if column is None:
                    parts[layout] = ([index], [data])
                else:
                    column[0].append(index)
                    column[1].append(data)
    return values, {layout: (indexes, b"".join(data)) for layout, (indexes, data) in parts.items()}


def put_arrays(
    values: list[Any], columns: Mapping[ArrayLayout, tuple[list[int], bytes | AnyArray]], *, readonly: bool
) -> None:
    """Put the arrays of a chunk into its values, read-only or writable. The inverse of `take_arrays`."""
    for (name, code, shape), (indexes, data) in columns.items():
        rows = np.ndarray((len(indexes), *shape), code, data if readonly else bytearray(data))
        for index, row in zip(indexes, rows, strict=True):
            value = values[index]
            if name is None:
                values[index] = row
            elif type(value) is tuple:
                values[index] = (*value[:name], row, *value[name + 1 :])
            else:
                value[name] = row


MAX_PACKET_ITEM_BYTES: Final = 1340
"""A packet cannot hold two larger items, so packing them into chunks saves nothing."""
_MAX_PARTS: Final = 64
_ITEM_BYTES: Final = 5
"""The pickle of an empty container."""
_INT_BYTES: Final = 7
"""The pickle of an integer, without the term for its size (an eighth of its bits)."""
_FLOAT_BYTES: Final = 9
_STRING_BYTES: Final = 6
"""The pickle of an empty string, or of a reference to an earlier string."""
CHUNK_BYTES: Final = 68
"""The most bytes that a chunk takes in addition to its items: the entry's header and the outer pickle."""
KEY_PART_BYTES: Final = 4
GAP_BYTES: Final = 5
"""The bytes of a tombstone among the items of a chunk."""
PLAIN_ROOM_BYTES: Final = MAX_ENTRY_BYTES - CHUNK_BYTES - 8 * KEY_PART_BYTES
"""The largest plain item that fits a packet, with a key of at most eight numbers."""


def measure_plain(  # noqa: C901, PLR0912 - one pass without calls: every small item pays it
    item: Any, below_bytes: int = 0, max_bytes: int = MAX_PACKET_ITEM_BYTES
) -> int:
    """Return the most bytes that the pickle of `item` takes in a chunk; 0 if not plain, or above `max_bytes`.

    The result is negative if the item has arrays, each below `below_bytes`: then hold it with `hold_arrays`.

    >>> measure_plain({"id": 3}) > 0, measure_plain({"id": [3]})
    (True, 0)
    """
    arrays: list[ndarray[Any, Any]] | None = None
    nbytes = _ITEM_BYTES
    kind = type(item)
    if kind is dict:
        if len(item) > _MAX_PARTS:
            return 0
        for name in item:
            if type(name) is not str:
                return 0
            nbytes += _STRING_BYTES + (len(name) if name.isascii() else 4 * len(name))
        parts = item.values()
    elif kind is tuple or kind is list:
        if len(item) > _MAX_PARTS:
            return 0
        parts = item
    else:
        parts = (item,)
    for part in parts:
        kind = type(part)
        if kind is int:
            nbytes += _INT_BYTES + (part.bit_length() >> 3)
        elif kind is str:
            nbytes += _STRING_BYTES + (len(part) if part.isascii() else 4 * len(part))
        elif kind is float or kind is bool or part is None:
            nbytes += _FLOAT_BYTES
        elif kind is bytes:
            nbytes += _STRING_BYTES + len(part)
        elif kind is ndarray and part.nbytes < below_bytes:
            arrays = [part] if arrays is None else [*arrays, part]
        else:
            return 0
    if arrays is None:
        return nbytes if nbytes <= max_bytes else 0
    array_bytes = measure_arrays(arrays)
    return -nbytes - array_bytes if array_bytes and nbytes + array_bytes <= max_bytes else 0


_SKIP_TYPE: Final = type(SKIP)


def shift_key(key: Key, offset: int) -> Key:
    """Return the key of the item that is `offset` items after `key` in a chunk.

    >>> shift_key((7,), 2), shift_key((7, 0), 2)
    ((9,), (7, 2))
    """
    return (key[0] + offset,) if len(key) == 1 else (*key[:-1], key[-1] + offset)


def count_kept(values: list[Any]) -> int:
    """Count the items of a chunk that are not tombstones.

    >>> count_kept([1, SKIP, 3])
    2
    """
    return len(values) - list(map(type, values)).count(_SKIP_TYPE)


def encode_chunk(values: list[Any]) -> bytes:
    """Pickle held items: copies of plain items, `ArrayItem` or SKIP.

    >>> pickle.loads(encode_chunk([1, SKIP, 3]))
    ([1, 3], None, [1])
    """
    types = set(map(type, values))
    gaps: Sequence[int] = ()
    columns: ArrayColumns | None = None
    if _SKIP_TYPE in types:
        gaps = [index for index, value in enumerate(values) if value is SKIP]
        values = [value for value in values if value is not SKIP]
    if ArrayItem in types:
        values, columns = take_arrays(values)
    return pickle.dumps((values, columns, gaps), 5)


def encode_single(value: Any) -> bytes:
    """Pickle one held item without arrays, as `encode_chunk` does. Faster, for an item that a reader waits for."""
    return pickle.dumps(([value], None, ()), 5)


def decode_chunk(data: Any, count: int, *, readonly: bool) -> list[Any]:
    """Return the `count` items of a chunk; arrays are `readonly` or not. Raises TransportError for another count."""
    values: list[Any]
    values, columns, gaps = pickle.loads(data)
    if columns:
        put_arrays(values, columns, readonly=readonly)
    for index in gaps:
        values.insert(index, SKIP)
    if not len(values) == count > 0:
        raise TransportError(f"an entry states {count} items, and has {len(values)}")
    return values


CHUNK_BLOCK_BYTES: Final = 32 << 10
"""The room for plain items in a block. It stays in the caches, and a kept row keeps at most this much memory."""


def lease_chunk(entry: Entry, memory: SharedMemoryPool) -> Lease:
    """Lease the block of a chunk that is not in its packet. Raises TransportError if the entry is damaged."""
    arena, _, _, block, start, nbytes = entry.descriptors[0]
    if len(entry.descriptors) != 1 or entry.flags != PacketFlag.PICKLE_IN_BLOCK or arena == INLINE_ARENA or start:
        raise TransportError(f"a chunk has {len(entry.descriptors)} descriptors and the flags {entry.flags}")
    return memory.lease_block(arena, block, nbytes, is_shared=False)
