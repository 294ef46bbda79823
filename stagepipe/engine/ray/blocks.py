"""Converts items to rows of Arrow tables, and back. A row is a key and an opaque payload, so items keep their types.

A payload is a pickle and the aligned buffers of the item's arrays, so a reader uses the arrays in place, in the memory
of the object store. Ray Data sends, splits and joins the tables. A worker's counts for a block travel with the items of
the block, so a repeated block counts once. Runs in the caller's process and in Ray workers; pickles travel only between
them.
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stagepipe.core import Key
from stagepipe.runtime import StageRunner
from stagepipe.timing import Histogram, SlowItemRow, StageRegion
from stagepipe.transport import EncodedBuffer, Encoder, SharedMemoryPool, decode

_ALIGNMENT: Final = 64
"""Alignment of buffers, the same as in Arrow and the object store."""
_HEADER: Final = struct.Struct("<QQQ")
"""Number of buffers, bytes of the pickle, and 1 if the item may hold tensors, which cannot be made read-only."""
_BUFFER: Final = struct.Struct("<QQ")
"""Bytes of a buffer, and 1 if the pickle refers to it (0 for an array that our encoder took out)."""
_MIN_BLOCK_BYTES: Final = 64 << 10

SCHEMA: Final = pa.schema(
    [
        ("kind", pa.int8()),
        ("key", pa.binary()),
        ("samples", pa.int64()),
        ("sender_ns", pa.int64()),
        ("payload", pa.large_binary()),
    ]
)


class RowKind(IntEnum):
    """The content of a row: an item, or a message for the caller, which all later stages forward."""

    ITEM = 0
    DEAD_LETTER = 1
    ERROR = 2
    COUNTS = 3


class Row(NamedTuple):
    """A row of a block. `payload` is a view of the block's memory; `sender_ns` is the encoding time at the sender."""

    kind: RowKind
    key: Key
    samples: int
    sender_ns: int
    payload: memoryview


class _NoSharedMemory:
    """Replaces a worker's shared memory for the encoder: on Ray, no array lies in it."""

    def find_lease(self, address: int, nbytes: int) -> None:
        """Return None."""


class BlockBuilder:
    """Collects rows into a table. Copies items when they are added, because their stage may reuse the arrays."""

    def __init__(self) -> None:
        """Start without rows."""
        memory: Any = _NoSharedMemory()
        pool: SharedMemoryPool = memory
        self._encoder = Encoder(pool)
        self._data = np.empty(_MIN_BLOCK_BYTES, np.uint8)
        self.nbytes = 0
        """Total bytes of the payloads so far."""
        self._rows: list[tuple[int, bytes, int, int]] = []
        self._offsets = [0]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def add_item(self, key: Key, value: Any, samples: int) -> int:
        """Add an item and return the bytes of its payload. Errors of pickling pass through."""
        started_ns = perf_counter_ns()
        encoder = self._encoder
        encoder.encode(value)
        try:
            buffers = encoder.buffers
            start = self.nbytes
            position = start + _HEADER.size + _BUFFER.size * len(buffers)
            end = _align(_align(position + len(encoder.pickle_data)) + sum(_align(each.nbytes) for each in buffers))
            self._reserve(end)
            self._write_head(start, buffers, encoder.pickle_data)
            position = _align(position + len(encoder.pickle_data))
            for buffer in buffers:
                encoder.copy_into(buffer, self._data[position : position + buffer.nbytes])
                position += _align(buffer.nbytes)
        finally:
            encoder.clear()
        sender_ns = perf_counter_ns() - started_ns
        self._end_row(RowKind.ITEM, key, (samples, sender_ns), end)
        return end - start

    def add_value(self, kind: RowKind, value: Any, key: Key = ()) -> None:
        """Add a pickled value as a message for the caller."""
        self.add_payload(kind, key, 0, pickle.dumps(value, protocol=5))

    def add_payload(self, kind: RowKind, key: Key, samples: int, payload: bytes | memoryview) -> None:
        """Add a row with a finished payload."""
        start, end = self.nbytes, _align(self.nbytes + len(payload))
        self._reserve(end)
        self._data[start : start + len(payload)] = np.frombuffer(payload, np.uint8)
        self._end_row(kind, key, (samples, 0), end)

    def build(self) -> pa.Table:
        """Return the rows as a table, and start over without rows."""
        kinds, keys, samples, sender_ns = zip(*self._rows, strict=True) if self._rows else ((), (), (), ())
        offsets = np.array(self._offsets, np.int64)
        payloads = pa.Array.from_buffers(
            pa.large_binary(),
            len(self._rows),
            [None, pa.py_buffer(offsets), pa.py_buffer(self._data[: self.nbytes])],
        )
        columns = [
            pa.array(kinds, pa.int8()),
            pa.array(keys, pa.binary()),
            pa.array(samples, pa.int64()),
            pa.array(sender_ns, pa.int64()),
            payloads,
        ]
        self._data = np.empty_like(self._data)  # pages that the next block does not touch take no memory
        self._rows = []
        self._offsets = [0]
        self.nbytes = 0
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def _write_head(self, start: int, buffers: Sequence[EncodedBuffer], pickle_data: bytes) -> None:
        head = _HEADER.pack(len(buffers), len(pickle_data), "torch" in sys.modules)
        head += b"".join(_BUFFER.pack(buffer.nbytes, buffer.is_pickle_buffer) for buffer in buffers)
        head += pickle_data
        self._data[start : start + len(head)] = np.frombuffer(head, np.uint8)

    def _reserve(self, end: int) -> None:
        if end > self._data.size:
            grown = np.empty(max(end, 2 * self._data.size), np.uint8)
            grown[: self.nbytes] = self._data[: self.nbytes]
            self._data = grown

    def _end_row(self, kind: RowKind, key: Key, numbers: tuple[int, int], end: int) -> None:
        self._rows.append((kind, struct.pack(f"<{len(key)}q", *key), *numbers))
        self._offsets.append(end)
        self.nbytes = end


def iter_rows(table: pa.Table) -> Iterator[Row]:
    """Yield the rows of a table."""
    for batch in table.to_batches():
        if not batch.num_rows:
            continue
        *columns, payloads = (batch.column(name) for name in SCHEMA.names)
        _, offsets_buffer, data_buffer = payloads.buffers()
        offsets: NDArray[np.int64] = np.frombuffer(offsets_buffer, np.int64)[payloads.offset :]
        data = memoryview(data_buffer)
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for index, (kind, key, samples, sender_ns) in enumerate(rows):
            payload = data[int(offsets[index]) : int(offsets[index + 1])]
            yield Row(RowKind(kind), struct.unpack(f"<{len(key) // 8}q", key), samples, sender_ns, payload)


def load_value(row: Row) -> Any:
    """Return the value of a row that `BlockBuilder.add_value` made."""
    return pickle.loads(row.payload)


def decode_item(payload: memoryview, *, copies: bool, is_readonly: bool) -> tuple[Any, int]:
    """Return the item of a payload, and the decoding time in nanoseconds.

    With `copies`, the item gets its own memory. Otherwise its arrays are views of the payload, unless the item may hold
    tensors: those could be written to. Raises TransportError.
    """
    started_ns = perf_counter_ns()
    buffer_count, pickle_bytes, may_hold_tensors = _HEADER.unpack_from(payload)
    if copies or may_hold_tensors:
        payload = np.array(np.frombuffer(payload, np.uint8)).data
    position = _HEADER.size + _BUFFER.size * buffer_count
    pickle_data = payload[position : position + pickle_bytes]
    position = _align(position + pickle_bytes)
    buffers: list[memoryview] = []
    pickle_buffers: list[memoryview] = []
    for index in range(buffer_count):
        nbytes, is_pickle_buffer = _BUFFER.unpack_from(payload, _HEADER.size + _BUFFER.size * index)
        buffers.append(payload[position : position + nbytes])
        if is_pickle_buffer:
            pickle_buffers.append(buffers[-1])
        position += _align(nbytes)
    value = decode(pickle_data, buffers, pickle_buffers, readonly=is_readonly)
    return value, perf_counter_ns() - started_ns


def _align(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True, kw_only=True)
class StageCounts:
    """The counts of one stage in a block. `counters` are indexed by `StageCounter`."""

    counters: tuple[int, ...]
    run_histogram: Histogram
    slow_items: tuple[SlowItemRow, ...]


@dataclass
class HopClock:
    """Durations and sizes of the items that a worker received and sent. `cost_ns` is encoding plus decoding."""

    decode_ns: list[int] = field(default_factory=list)
    cost_ns: list[int] = field(default_factory=list)
    encode_ns: list[int] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)

    def add_received(self, sender_ns: int, decode_ns: int) -> None:
        """Add the times of a decoded item."""
        self.decode_ns.append(decode_ns)
        self.cost_ns.append(sender_ns + decode_ns)


@dataclass(frozen=True, kw_only=True)
class BlockCounts:
    """A worker's counts for one block: its stages, and its input and output hops. Durations are in ns.

    `worker` names the process and its node; clocks of different nodes are never compared. `began_ns` and `ended_ns` are
    times of the worker's clock. `setup_ns` is the time in which the worker built its stages.
    """

    process_index: int
    worker: str
    stages: tuple[StageCounts, ...]
    clock: HopClock
    began_ns: int
    ended_ns: int
    cpu_ns: int
    setup_ns: int = 0


class CountReader:
    """Reads the counts of a process's stages since the last block."""

    def __init__(self, stages: Sequence[StageRunner], regions: Sequence[StageRegion]) -> None:
        """Start with the current counters of `regions`, which the stages write to."""
        self._stages = stages
        self._regions = regions
        self._previous = [region.read_counters() for region in regions]

    def take(self) -> tuple[StageCounts, ...]:
        """Return the counts since the last call."""
        counts = []
        for index, (stage, region) in enumerate(zip(self._stages, self._regions, strict=True)):
            stage.flush()
            counters = region.read_counters()
            counts.append(
                StageCounts(
                    counters=tuple(new - old for new, old in zip(counters, self._previous[index], strict=True)),
                    run_histogram=Histogram.from_words(region.run_histogram_words),
                    slow_items=region.read_slow_items(),
                )
            )
            self._previous[index] = counters
            region.run_histogram_words[...] = np.uint64(0)
            region.slow_items[...] = np.uint64(0)
        return tuple(counts)
