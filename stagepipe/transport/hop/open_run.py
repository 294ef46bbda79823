"""Takes the items of a received run one after the other, each with its own queue time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import perf_counter_ns
from typing import Protocol

from stagepipe.core import Key
from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.hop.plain_run import unpack_run
from stagepipe.transport.hop.received import ReceivedPacket
from stagepipe.transport.hop.run_block import lease_run
from stagepipe.transport.memory import SharedMemoryPool
from stagepipe.transport.wire import Entry, PacketKind

_ITEM = int(PacketKind.ITEM)
_PIPE = int(TransferKind.PIPE)

RunItems = Generator[ReceivedPacket, None, None]


class RunReader(Protocol):
    """The receiver that takes the items: its attributes as they are when an item's turn comes."""

    is_readonly: bool
    on_item: Callable[[Key], None]
    unwanted_keys: frozenset[Key]
    queue_ns: int
    items_in_hand: int


def open_run(
    entry: Entry, receive_ns: int, reader: RunReader, recorder: DurationRecorder, memory: SharedMemoryPool
) -> RunItems:
    """Unpickle the items of a run, and yield each when its turn comes; `receive_ns` is what reading the entry took.

    The times of those that were taken are recorded together, at the end or when the generator is closed.
    """
    begin_ns = perf_counter_ns()
    block = lease_run(entry, memory)
    nbytes = entry.nbytes if block is None else entry.nbytes + block.size
    keys, values = unpack_run(entry, readonly=reader.is_readonly, block=block)
    del block
    count = len(keys)
    decode_ns = (perf_counter_ns() - begin_ns) // count
    receive_ns //= count
    sent_at_ns = entry.sent_at_ns
    row_ns = (0, receive_ns, decode_ns, entry.sender_ns + receive_ns + decode_ns)
    ledger_entry = (_PIPE, nbytes // count, receive_ns)
    queue_times_ns: list[int] = []
    try:
        for key, value in zip(keys, values, strict=True):
            reader.items_in_hand = count = count - 1
            if reader.unwanted_keys and key in reader.unwanted_keys:
                yield ReceivedPacket(_ITEM, key, 1, 0, b"", None)
                continue
            reader.on_item(key)
            reader.queue_ns = queue_ns = perf_counter_ns() - sent_at_ns
            queue_times_ns.append(queue_ns)
            if not count:  # not after the yield: nobody may ask for another item
                recorder.add_alike(row_ns, ledger_entry, 0, queue_times_ns)
                queue_times_ns = []
            yield ReceivedPacket(_ITEM, key, 1, 0, b"", value)
    finally:
        if queue_times_ns:
            recorder.add_alike(row_ns, ledger_entry, 0, queue_times_ns)
