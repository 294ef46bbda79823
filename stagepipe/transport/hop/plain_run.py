"""Plain items that are pickled together, in one entry of a packet. Built by a sending process, read by a receiving one.

An item is plain if it is a number, a string, bytes, None or a small array (see `run_arrays`), or a dict, list or tuple
of these, of exactly these types. Pickling and unpickling it runs no code but pickle's and NumPy's own, so it cannot
fail, and cannot kill a process. Forty small dicts that are pickled together take a third of the time that they take one
by one. A run that exceeds a packet lies in a block (see `run_block`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from numpy import ndarray

from stagepipe.core import Key, TransportError
from stagepipe.transport.hop.run_arrays import measure_arrays, put_arrays, take_arrays
from stagepipe.transport.wire import MAX_ENTRY_BYTES, Entry, PacketKind, pack_entry

MAX_PACKET_ITEM_BYTES: Final = 1340
"""A larger item gains nothing in a packet, which would hold two of them."""
_MAX_PARTS: Final = 64
_ITEM_BYTES: Final = 8
"""The pickles of an empty container and of a key without parts."""
_INT_BYTES: Final = 7
"""The pickle of an integer, without an eighth of its bits."""
_KEY_PART_BYTES: Final = 11
_FLOAT_BYTES: Final = 9
_STRING_BYTES: Final = 6
"""The pickle of an empty string, or of a reference to one before it."""
_RUN_BYTES: Final = 72
"""What a run takes beside its items, at most: the entry's header and the outer pickle."""
PLAIN_ROOM_BYTES: Final = MAX_ENTRY_BYTES - _RUN_BYTES
"""The room for plain items in a packet."""

PLAIN_RUN = int(PacketKind.PLAIN_RUN)

PlainItem = tuple[Any, Key, int, int]
"""An item that is held back, its key, and when its sending began and it was held (`perf_counter_ns`)."""


def measure_plain(  # noqa: C901, PLR0912 - one pass without calls: every small item pays it
    item: Any, key: Key, below_bytes: int = 0, max_bytes: int = MAX_PACKET_ITEM_BYTES
) -> int:
    """The most bytes that the pickles of `item` and `key` take in a run; 0 if not plain, or more than `max_bytes`.

    Negative if the item has arrays, each of fewer than `below_bytes`: it is held by `hold_arrays`.

    >>> measure_plain({"id": 3}, (0,)) > 0, measure_plain({"id": [3]}, (0,))
    (True, 0)
    """
    arrays: list[ndarray[Any, Any]] | None = None
    nbytes = _ITEM_BYTES + _KEY_PART_BYTES * len(key)
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


class RunTimes(NamedTuple):
    """The times of a packed run. `made_ns` has the time of each item, and the others are an item's share.

    `is_in_block`: the run was copied to a block, which took `copy_ns`.
    """

    encode_ns: int
    nbytes: int
    made_ns: tuple[int, ...]
    copy_ns: int = 0
    is_in_block: bool = False


class EncodedRun(NamedTuple):
    """The pickle of a run, what it took for each item, and when each item was made."""

    data: bytes
    encode_ns: int
    made_ns: tuple[int, ...]


def encode_run(items: list[PlainItem], *, has_arrays: bool) -> EncodedRun:
    """Pickle items. `has_arrays`: any of them may be one of `hold_arrays`."""
    started_ns = perf_counter_ns()
    values, keys, begins_ns, made_ns = zip(*items, strict=True)
    contents = take_arrays(values) if has_arrays else (values, ())
    data = pickle.dumps((keys, *contents), 5)
    return EncodedRun(data, (sum(made_ns) - sum(begins_ns) + perf_counter_ns() - started_ns) // len(items), made_ns)


def pack_run(
    items: list[PlainItem], generation: int, send_ns: int, *, has_arrays: bool = False
) -> tuple[bytes, RunTimes]:
    """The entry of a run, and its times. `send_ns`: what the write will take for each item."""
    data, encode_ns, made_ns = encode_run(items, has_arrays=has_arrays)
    count = len(items)
    header = (generation, (0,), 1, b"")
    entry = pack_entry(PLAIN_RUN, header, encode_ns + send_ns, count_or_bytes=count, pickle_data=data)
    return entry, RunTimes(encode_ns, len(entry) // count, made_ns)


def pack_runs(
    items: list[PlainItem], generation: int, send_ns: int, *, has_arrays: bool
) -> Iterator[tuple[bytes, RunTimes]]:
    """`pack_run` for items that may exceed a packet: entries that each fit one."""
    entry, times = pack_run(items, generation, send_ns, has_arrays=has_arrays)
    if len(entry) <= MAX_ENTRY_BYTES:
        yield entry, times
        return
    middle = len(items) // 2
    for half in (items[:middle], items[middle:]):
        yield from pack_runs(half, generation, send_ns, has_arrays=has_arrays)


def unpack_run(entry: Entry, *, readonly: bool, block: Any = None) -> tuple[Sequence[Key], Sequence[Any]]:
    """The keys and the items of a run, their arrays `readonly` or writable. `block`: the bytes of a run in a block.

    Raises TransportError if they are not as many as it states.
    """
    start, end = entry.pickle_span
    keys, values, columns = pickle.loads(entry.data[start:end] if block is None else block)
    if not len(keys) == len(values) == entry.count_or_bytes > 0:
        raise TransportError(
            f"an entry states {entry.count_or_bytes} items, and has {len(keys)} keys and {len(values)} items"
        )
    if columns:
        put_arrays(values, columns, readonly=readonly)
    return keys, values
