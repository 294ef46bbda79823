"""Small items that share a packet: what a sender holds back, and how plain items are pickled together.

An entry is held back only while the process makes entries quickly: at most one in ten takes longer than 50 us from the
entry before it (so many do where other processes want the same CPU). Every wait of the process writes what is held
first (`Outbox.flush`). A call that is slow after all, after a hundred that were quick, would keep what is held from its
reader: the thread of `LateWriter` bounds that to 10 ms, unless the call keeps the interpreter's lock.

An item is plain if it is a number, a string, bytes, None or a small array, or a dict, list or tuple of these, of
exactly these types. Pickling and unpickling it runs no code but pickle's and NumPy's, so it cannot fail, and cannot
kill a process. Forty small dicts that are pickled together take a third of the time that they take one by one. Small
arrays are copied when held, stacked by name, dtype and shape, and handed out as rows: an array's bytes cost a tenth of
what its pickle costs, and a row of a stack a quarter of a separate array. Only arrays whose dtype one character defines
take part.

A run of plain items that exceeds a packet goes into a block. A packet holds one row of 2 kB, and costs both sides 30 us
of CPU time; in a block, fifteen rows share a packet. The reader copies them out, so that a row which is kept does not
keep the block.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter_ns, sleep
from typing import Any, Final, NamedTuple

import numpy as np
from numpy import ndarray

from stagepipe.core import ArenaFullError, Key, TransportError
from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.memory import Lease, SharedMemoryPool
from stagepipe.transport.packet import (
    INLINE_ARENA,
    MAX_ENTRY_BYTES,
    Entry,
    PacketFlag,
    PacketKind,
    join_entries,
    pack,
    pack_entry,
    write_timestamps,
)
from stagepipe.transport.packing import CarriedBlocks, SendCounts

AnyArray = np.ndarray[Any, Any]

_DTYPES = frozenset(map(np.dtype, "?bBhHiIlLqQefdgFDG"))
"""The numbers in native byte order. Equal dtypes may differ in their metadata, which must not be lost."""
_MAX_DIMENSIONS = 4
_ARRAY_BYTES = 52
"""What an array takes beside its bytes, at most: its layout, its item's index, and the dict entry for both."""

ArrayLayout = tuple[Any, str, tuple[int, ...]]
"""Key (str) or position (int) in the item (None: the item is the array), dtype character, shape."""
ArrayColumns = dict[ArrayLayout, tuple[list[int], bytes]]
"""By layout: the positions of the items in the run, and the bytes of their arrays, one after the other."""


class ArrayItem(NamedTuple):
    """A held item: `value` has None in place of each array, `arrays` has their layouts and bytes."""

    value: Any
    arrays: list[tuple[ArrayLayout, bytes]]


def measure_arrays(arrays: Sequence[AnyArray]) -> int:
    """The most bytes that the arrays of an item take in a run; 0 if they cannot share it.

    Each must be contiguous in C order. An array that the item holds twice must arrive as one.
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
    """A copy of an item with measured arrays, which its owner may change from now on."""
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


def take_arrays(held: Sequence[Any]) -> tuple[Sequence[Any], ArrayColumns]:
    """The values of held items, with None in place of each array, and the arrays."""
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
    """Put the arrays of a run into its values, read-only or writable. The inverse of `take_arrays`."""
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


RUN_BLOCK_BYTES: Final = 32 << 10
"""The room for plain items in a block. It stays in the caches, and a row that is kept keeps no more than this."""


class RunBlocks:
    """Packs the runs of a sending process."""

    def __init__(self, carried: CarriedBlocks) -> None:
        """`carried` holds the block of the last run."""
        self._carried = carried

    def pack(
        self, items: list[PlainItem], generation: int, send_ns: int, *, has_arrays: bool
    ) -> tuple[bytearray, RunTimes] | None:
        """The packet of a run in a block, and its times; None if there is no memory for it.

        `send_ns`: what the write will take for each item.
        """
        data, encode_ns, made_ns = encode_run(items, has_arrays=has_arrays)
        begin_ns = perf_counter_ns()
        nbytes, count = len(data), len(items)
        self._carried.block_ids = []
        try:
            arena, block, target = self._carried.allocate(nbytes, for_several_items=True)
        except ArenaFullError:
            return None
        target[:] = np.frombuffer(data, np.uint8)
        packet = pack(
            PLAIN_RUN,
            (generation, (0,), 1, b""),
            flags=PacketFlag.PICKLE_IN_BLOCK,
            count_or_bytes=count,
            descriptors=[(arena, 0, 0, block, 0, nbytes)],
        )
        now_ns = perf_counter_ns()
        copy_ns = (now_ns - begin_ns) // count
        write_timestamps(packet, encode_ns + copy_ns + send_ns, now_ns)
        return packet, RunTimes(encode_ns, nbytes // count, made_ns, copy_ns, is_in_block=True)

    def release(self) -> None:
        """Release the block of a run that was not sent."""
        self._carried.release()


def lease_run(entry: Entry, memory: SharedMemoryPool) -> Lease | None:
    """A lease on the block of a received run; None if the run is in its packet. Raises TransportError if damaged."""
    if not entry.descriptors:
        return None
    arena, _, _, block, start, nbytes = entry.descriptors[0]
    if len(entry.descriptors) != 1 or entry.flags != PacketFlag.PICKLE_IN_BLOCK or arena == INLINE_ARENA or start:
        raise TransportError(f"a run has {len(entry.descriptors)} descriptors and the flags {entry.flags}")
    return memory.lease_block(arena, block, nbytes, is_shared=False)


_PIPE: Final = int(TransferKind.PIPE)

HeldTimes = tuple[int, int, int, int]
"""Of an entry with an item: encode ns, copy ns, when it was made (`perf_counter_ns`), bytes."""


class HeldRecorder:
    """Adds the phases of each item to a recorder, and the plain items to the counts of their sender."""

    def __init__(self, recorder: DurationRecorder, counts: SendCounts) -> None:
        """`recorder` takes the rows of SEND_PHASES."""
        self._recorder = recorder
        self._counts = counts

    def record_alone(self, times: HeldTimes, send_ns: int, waited_ns: int) -> None:
        """Record an entry that was not held back."""
        encode_ns, copy_ns, _, nbytes = times
        self._recorder.add((encode_ns, copy_ns, 0, send_ns, waited_ns), (_PIPE, nbytes, copy_ns + send_ns))

    def record(self, times: Sequence[HeldTimes | RunTimes], begin_ns: int, send_ns: int, wait_ns: int) -> None:
        """Record the entries of a packet written at `begin_ns`. `send_ns`, `wait_ns`: an item's share of the write."""
        for entry_times in times:
            if isinstance(entry_times, RunTimes):
                self._record_run(entry_times, begin_ns, send_ns, wait_ns)
                continue
            encode_ns, copy_ns, item_ns, nbytes = entry_times
            self._recorder.add(
                (encode_ns, copy_ns, begin_ns - item_ns, send_ns, wait_ns), (_PIPE, nbytes, copy_ns + send_ns)
            )

    def _record_run(self, times: RunTimes, begin_ns: int, send_ns: int, wait_ns: int) -> None:
        encode_ns, nbytes, made_ns, copy_ns, is_in_block = times
        counts, item_count = self._counts, len(made_ns)
        if is_in_block:
            counts.shared_memory_messages += item_count
            counts.copied_bytes += nbytes * item_count
        else:
            counts.pipe_messages += item_count
            counts.inline_bytes += nbytes * item_count
        # PIPE in a block too: what a share of a block costs must not pass for the cost of a block with one item.
        self._recorder.add_alike(
            (encode_ns, copy_ns, 0, send_ns, wait_ns),
            (_PIPE, nbytes, copy_ns + send_ns),
            2,
            [begin_ns - item_ns for item_ns in made_ns],
        )


def count_entries(entries: Sequence[bytes], times: Sequence[HeldTimes | RunTimes]) -> int:
    """How many entries these are, each item of a run counted."""
    runs = [len(entry_times.made_ns) for entry_times in times if isinstance(entry_times, RunTimes)]
    return len(entries) - len(runs) + sum(runs)


_CHECK_INTERVAL_S: Final = 0.005
_CHECKS_BEFORE_IDLE: Final = 20


class LateWriter:
    """Calls `write_late` every 5 ms while entries are held, and for 100 ms after the last ones."""

    def __init__(self, write_late: Callable[[], bool]) -> None:
        """`write_late` writes what has been held too long, and returns whether anything is or was held since the call.

        The thread starts with the first `watch`.
        """
        self._write_late = write_late
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_watching = False

    def watch(self) -> None:
        """Entries are held from now on. Call it if `is_watching` is False."""
        self.is_watching = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stagepipe-late-writer", daemon=True)
            self._thread.start()
        self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            self._check_until_idle()

    def _check_until_idle(self) -> None:
        idle_checks = 0
        while idle_checks < _CHECKS_BEFORE_IDLE:
            sleep(_CHECK_INTERVAL_S)
            idle_checks = 0 if self._write_late() else idle_checks + 1
        self.is_watching = False
        if self._write_late():  # held between the last check and the line before
            self.is_watching = True
            self._wanted.set()


_QUICK_NS: Final = 50_000
"""A process that takes longer for an item gains little: the write, which entries share, takes about 2 us."""
_MIN_QUICK: Final = 50
_SLOW_COST: Final = 10
"""A slow entry undoes so many quick ones."""
_MAX_QUICK: Final = _MIN_QUICK + 2 * _SLOW_COST
_MAX_HELD_NS: Final = 200_000
"""An entry made so long after the first one held is the last of its packet."""

_LATE_NS: Final = 1_000_000
"""The process is busy with something slow if it has held an entry so long."""

PacketWriter = Callable[[bytearray, int], int]
"""Writes a packet, from the given time on. Returns how many ns it had to wait; -1 if it was interrupted."""

WriteAttempt = Callable[[bytearray], bool]
"""Writes a packet if that needs no wait. Returns whether it did."""


class Outbox:
    """Holds entries back, up to `max_entries` with the one that is written at once."""

    def __init__(
        self,
        write_packet: PacketWriter,
        try_write: WriteAttempt,
        recorder: DurationRecorder,
        counts: SendCounts,
        run_blocks: RunBlocks | None = None,
    ) -> None:
        """`recorder` takes the rows of SEND_PHASES; plain items add to `counts`.

        The late writer's thread calls `try_write`. `run_blocks`: for plain items above MAX_PACKET_ITEM_BYTES.
        """
        self._write_packet = write_packet
        self._try_write = try_write
        self._recorder = HeldRecorder(recorder, counts)
        self._run_blocks = run_blocks
        self.max_entries = 1
        self.blocked_ns = 0
        self.last_send_ns = 0
        """The cost of the last write for each of its entries."""
        self._lock = threading.Lock()
        """Guards what is held, against the late writer's thread."""
        self._late_writer = LateWriter(self._write_late)
        self._entries: list[bytes] = []
        self._times: list[HeldTimes | RunTimes] = []
        self._plain_items: list[PlainItem] = []
        """They follow `_entries`. Added without the lock: the late writer removes items only at the front."""
        self.has_arrays = False
        """Whether any plain item so far was one of `hold_arrays`."""
        self._generation = 0
        """That of the plain items."""
        self._count = 0
        """How many entries are held, each plain item counted; too many after the late writer took some."""
        self._nbytes = 0
        """The most bytes that they take; the same."""
        self._room_bytes = PLAIN_ROOM_BYTES
        """How many bytes of plain items may be held. More than a packet's room: all that is held are plain items."""
        self._was_held = False
        """Whether anything was held since the late writer has looked."""
        self._late_packets: list[tuple[list[HeldTimes | RunTimes], int]] = []
        """Written by the late writer, and not recorded yet: times, when."""
        self._first_made_ns = 0
        self.hold_until_ns = 0
        """An entry that is made by then may be held back: this process makes them quickly."""
        self._quick_until_ns = 0
        """An entry that is made by then is a quick one; 0 after a wait, when this is not known."""
        self._quick_count = 0

    def add(self, entry: bytes, made_ns: int, times: HeldTimes | None = None, *, is_last: bool = False) -> bool:
        """Hold an entry back, or write it with those that are held; False if that was interrupted, and all are dropped.

        `times`: of an entry with an item. `is_last`: nothing follows, so it is written.
        """
        nbytes = len(entry)
        if self._room_bytes > PLAIN_ROOM_BYTES:  # also if the late writer took them all: `entry` has no place with them
            if not self._write():
                return False
        elif self._plain_items:
            with self._lock:
                self._pack_plain_items()
        if self._nbytes + nbytes > MAX_ENTRY_BYTES and not self._write():
            return False
        may_hold = self.max_entries > 1 and not is_last and made_ns <= self.hold_until_ns
        self._count_pace(made_ns)
        if not self._count:
            if not may_hold:
                return self._write_alone(entry, made_ns, times)
            self._first_made_ns = made_ns
        with self._lock:
            self._entries.append(entry)
            if times is not None:
                self._times.append(times)
        self._count += 1
        self._nbytes = held_bytes = self._nbytes + nbytes
        if (
            not may_hold
            or self._count >= self.max_entries
            or held_bytes + nbytes > MAX_ENTRY_BYTES  # the next entry probably has the size of this one
            or made_ns - self._first_made_ns >= _MAX_HELD_NS
        ):
            return self._write()
        self._was_held = True
        if not self._late_writer.is_watching:
            self._late_writer.watch()
        return True

    def add_plain(self, value: Any, generation: int, key: Key, nbytes: int, begin_ns: int) -> bool:
        """`add` for a plain item of at most `nbytes`, made by `hold_until_ns`; it is pickled later, with others.

        `begin_ns`: when its sending began. Nobody else may change `value`. Much like `add`, without a call more than
        it needs: this is what most small items cost.
        """
        is_large = nbytes > MAX_PACKET_ITEM_BYTES
        if is_large and self._entries and not self._write():
            return False
        if is_large:
            self._room_bytes = RUN_BLOCK_BYTES
        held_bytes = self._nbytes + nbytes
        if held_bytes > self._room_bytes or generation != self._generation:
            if not self._write():
                return False
            self._generation = generation
            held_bytes = nbytes
            if is_large:
                self._room_bytes = RUN_BLOCK_BYTES
        made_ns = perf_counter_ns()
        self._plain_items.append((value, key, begin_ns, made_ns))
        self.hold_until_ns = self._quick_until_ns = made_ns + _QUICK_NS
        if self._quick_count < _MAX_QUICK:
            self._quick_count += 1
        self._nbytes = held_bytes
        self._count = count = self._count + 1
        if count == 1:
            self._first_made_ns = made_ns
        if (
            count >= self.max_entries
            or held_bytes + nbytes > self._room_bytes
            or made_ns - self._first_made_ns >= _MAX_HELD_NS
        ):
            return self._write()
        self._was_held = True
        if not self._late_writer.is_watching:
            self._late_writer.watch()
        return True

    def _pack_plain_items(self) -> None:
        """Make the plain items an entry. Under the lock."""
        if self._plain_items:
            entry, times = self._pack_run(self._plain_items)
            self._plain_items = []
            self._entries.append(entry)
            self._times.append(times)
        self._nbytes = sum(map(len, self._entries))

    def _pack_run(self, items: list[PlainItem]) -> tuple[bytes, RunTimes]:
        return pack_run(items, self._generation, self.last_send_ns, has_arrays=self.has_arrays)

    def _count_pace(self, made_ns: int) -> None:
        """Count an entry as quick or slow."""
        if self._quick_until_ns:
            if made_ns > self._quick_until_ns:
                self._quick_count = max(self._quick_count - _SLOW_COST, 0)
            elif self._quick_count < _MAX_QUICK:
                self._quick_count += 1
        self._quick_until_ns = made_ns + _QUICK_NS
        self.hold_until_ns = self._quick_until_ns if self._quick_count >= _MIN_QUICK else 0

    def _excuse(self, write_ns: int) -> None:
        """A packet's write does not make the next entry slow: the reader that it wakes may take this CPU meanwhile.

        Else a slow process would stay so: as it holds nothing back, each of its entries wakes a reader.
        """
        if self.hold_until_ns:
            self.hold_until_ns += write_ns
        if self._quick_until_ns:
            self._quick_until_ns += write_ns

    def flush(self) -> bool:
        """Write what is held, because the process waits or begins something else; False if that was interrupted."""
        is_written = not self._count or self._write()
        self.hold_until_ns = self._quick_until_ns = 0
        return is_written

    def discard(self) -> None:
        """Drop what is held: a seek has made it obsolete."""
        self._take()
        self.hold_until_ns = self._quick_until_ns = 0

    def _take(self) -> tuple[list[bytes], list[HeldTimes | RunTimes], list[PlainItem]]:
        """Take what is held: the entries, their times, and the plain items after them."""
        with self._lock:
            held = self._entries, self._times, self._plain_items
            self._entries = []
            self._times = []
            self._plain_items = []
        self._count = 0
        self._nbytes = 0
        self._room_bytes = PLAIN_ROOM_BYTES
        return held

    def _write(self) -> bool:
        is_large = self._room_bytes > PLAIN_ROOM_BYTES
        entries, times, items = self._take()
        if is_large:
            return self._write_large(items)
        if items:
            entry, run_times = self._pack_run(items)
            entries.append(entry)
            times.append(run_times)
        return not entries or self._write_together(entries, times)  # none: the late writer was faster

    def _write_large(self, items: list[PlainItem]) -> bool:
        """Write plain items that may exceed a packet: in a block, or in several packets where it has no memory."""
        if not items:
            return True
        blocks, send_ns = self._run_blocks, self.last_send_ns
        packed = None
        if blocks is not None:
            packed = blocks.pack(items, self._generation, send_ns, has_arrays=self.has_arrays)
        if blocks is None or packed is None:
            runs = pack_runs(items, self._generation, send_ns, has_arrays=self.has_arrays)
            return all(self._write_together([entry], [times]) for entry, times in runs)
        packet, times = packed
        try:
            is_written = self._write_and_record(packet, [times], len(items), perf_counter_ns())
        except BaseException:
            blocks.release()
            raise
        if not is_written:
            blocks.release()
        return is_written

    def _write_together(self, entries: list[bytes], times: list[HeldTimes | RunTimes]) -> bool:
        begin_ns = perf_counter_ns()
        packet = join_entries(entries, begin_ns)
        return self._write_and_record(packet, times, count_entries(entries, times), begin_ns)

    def _write_and_record(
        self, packet: bytearray, times: list[HeldTimes | RunTimes], count: int, begin_ns: int
    ) -> bool:
        waited_ns = self._write_packet(packet, begin_ns)
        if waited_ns < 0:
            return False
        self.blocked_ns += waited_ns
        packet_ns = perf_counter_ns() - begin_ns - waited_ns
        self.last_send_ns = packet_ns // count
        self._recorder.record(times, begin_ns, self.last_send_ns, waited_ns // count)
        self._record_late_packets()
        self._excuse(packet_ns + waited_ns)
        return True

    def _write_alone(self, entry: bytes, begin_ns: int, times: HeldTimes | None) -> bool:
        """Write an entry while nothing is held: what an item costs that is not held back."""
        waited_ns = self._write_packet(join_entries((entry,), begin_ns), begin_ns)
        if waited_ns < 0:
            return False
        self.last_send_ns = send_ns = perf_counter_ns() - begin_ns - waited_ns
        self.blocked_ns += waited_ns
        self._excuse(send_ns + waited_ns)
        if times is not None:
            self._recorder.record_alone(times, send_ns, waited_ns)
        if self._late_packets:
            self._record_late_packets()
        return True

    def _record_late_packets(self) -> None:
        while self._late_packets:
            times, begin_ns = self._late_packets.pop()
            self._recorder.record(times, begin_ns, self.last_send_ns, 0)

    def _write_late(self) -> bool:
        """Write what has been held too long. On the late writer's thread; returns what `LateWriter` asks for."""
        with self._lock:
            was_held, self._was_held = self._was_held, False
            now_ns = perf_counter_ns()
            if now_ns - self._first_made_ns > _LATE_NS:
                self._try_write_held(now_ns)
            return was_held or bool(self._entries or self._plain_items)

    def _try_write_held(self, now_ns: int) -> None:
        """Write what is held if that needs no wait. Meanwhile the main thread may add plain items, which stay.

        Only the main thread may allocate a block, so items that exceed a packet go in several.
        """
        items = self._plain_items[:]
        entries, times = self._entries[:], self._times[:]
        runs = pack_runs(items, self._generation, self.last_send_ns, has_arrays=self.has_arrays) if items else iter(())
        for entry, run_times in runs:
            entries.append(entry)
            times.append(run_times)
            if not self._try_write_late(entries, times, now_ns):
                return
            del self._plain_items[: len(run_times.made_ns)]
            entries, times = [], []
        if entries:
            self._try_write_late(entries, times, now_ns)

    def _try_write_late(self, entries: list[bytes], times: list[HeldTimes | RunTimes], now_ns: int) -> bool:
        """Write entries, the first of those that are held, as a packet. Returns whether that needed no wait."""
        if not self._try_write(join_entries(entries, now_ns)):
            return False
        self._late_packets.append((times, now_ns))
        self._entries = []
        self._times = []
        return True
