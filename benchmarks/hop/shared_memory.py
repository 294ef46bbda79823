"""Peers whose images lie in shared memory: segments by hand, faster-fifo and iceoryx2, where they are installed.

faster-fifo is a queue with a lock and no thread, that pickles. iceoryx2's producer fills a loan, and the receiver gets
it in place, without a pickle: 8 bytes of number and the image, whose type the receiver knows. Its sides wait without
polling: the receiver for an event, the producer for a semaphore that counts free samples.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import queue
import secrets
import tempfile
from collections import deque
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hop.payload import Image, Item, make_image, make_item
from benchmarks.hop.peers import ProducerPeer, StopFlag, max_in_flight

REUSED_SLOTS = 16
"""As many as large items that a pipeline has in flight."""


def _feed_segments(writer: Connection, free_slots: Any, nbytes: int) -> None:
    stop, image = StopFlag(), make_image(nbytes)
    for number in count():
        free_slots.acquire()
        if stop.requested:
            break
        segment = SharedMemory(create=True, size=max(nbytes, 1))
        np.copyto(np.ndarray((nbytes,), np.uint8, segment.buf), image)
        writer.send((number, number % 1000, segment.name))
        segment.close()
    writer.send(None)


class SegmentPeer(ProducerPeer):
    """`multiprocessing.shared_memory`: one segment per message, whose name a Pipe carries; the receiver unlinks it.

    A segment has at least one byte. The image is valid until the next one is received.
    """

    name = "SharedMemory"

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._reader, writer = multiprocessing.Pipe(duplex=False)
        self._free_slots = multiprocessing.get_context("forkserver").Semaphore(max_in_flight(nbytes))
        self._segment: SharedMemory | None = None
        super().__init__(_feed_segments, writer, self._free_slots, nbytes, max_backlog=2 + max_in_flight(nbytes))
        writer.close()
        self.receive: Callable[[], Item] = self._receive

    def _receive(self) -> Item:
        self._release_segment()
        message = self._reader.recv()
        if message is None:
            raise EOFError
        number, label, name = message
        self._segment = SharedMemory(name)
        return {"id": number, "label": label, "image": np.ndarray((self._nbytes,), np.uint8, self._segment.buf)}

    def _release_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment.unlink()
            self._segment = None
            self._free_slots.release()

    def close(self) -> None:
        """Unlink the segments in flight, then end the producer."""
        self._process.terminate()
        self._free_slots.release()
        try:
            while True:
                self._receive()
        except EOFError:
            self._reader.close()
        self._join_producer()


def _list_slots(segment: SharedMemory, nbytes: int) -> list[Any]:
    """Return the arrays of all slots."""
    return [np.ndarray((nbytes,), np.uint8, segment.buf, slot * nbytes) for slot in range(REUSED_SLOTS)]


def _feed_slots(name: str, writer: Connection, free_slots: Any, nbytes: int) -> None:
    stop, image, segment = StopFlag(), make_image(nbytes), SharedMemory(name)
    slots = _list_slots(segment, nbytes)
    for number in count():
        free_slots.acquire()
        if stop.requested:
            break
        slot = number % REUSED_SLOTS
        np.copyto(slots[slot], image)
        writer.send((number, number % 1000, slot))
    writer.send(None)
    slots.clear()
    segment.close()


class ReusedSegmentPeer(ProducerPeer):
    """One segment of 16 slots that take turns: a Pipe carries the slot's number, a semaphore counts the free ones.

    The image is a view of its slot, which is given back when the next item is received. The slots come back in the
    order in which they were filled, so counting them suffices.
    """

    name = "SharedMemory reused"

    def __init__(self, nbytes: int) -> None:
        # A name of its own: tests look for segments with the usual one, and this one stays for a whole run.
        self._segment = SharedMemory(f"hop_{secrets.token_hex(8)}", create=True, size=max(REUSED_SLOTS * nbytes, 1))
        self._slots = _list_slots(self._segment, nbytes)
        self._reader, writer = multiprocessing.Pipe(duplex=False)
        self._free_slots = multiprocessing.get_context("forkserver").Semaphore(REUSED_SLOTS)
        self._holds_slot = False
        arguments = (self._segment.name, writer, self._free_slots, nbytes)
        super().__init__(_feed_slots, *arguments, max_backlog=2 + REUSED_SLOTS)
        writer.close()
        self.receive: Callable[[], Item] = self._receive

    def _receive(self) -> Item:
        if self._holds_slot:
            self._free_slots.release()
        number, label, slot = self._reader.recv()
        self._holds_slot = True
        return {"id": number, "label": label, "image": self._slots[slot]}

    def close(self) -> None:
        """End the producer, and unlink the segment; what is in flight is dropped."""
        self._process.terminate()
        self._free_slots.release()
        while self._reader.recv() is not None:
            self._free_slots.release()
        self._reader.close()
        self._join_producer()
        self._slots.clear()
        self._segment.close()
        self._segment.unlink()


_MESSAGE_BYTES = 200
"""More than the pickle of an item without its image."""
_WAIT_S = 0.2
_DEADLINE_S = 10.0
_MAX_LIST = 100


def _feed_fifo(fifo: Any, nbytes: int) -> None:
    stop, image = StopFlag(), make_image(nbytes)
    for number in count():
        item = make_item(number, image)
        while not stop.requested:
            try:
                fifo.put(item, timeout=_WAIT_S)
                break
            except queue.Full:
                continue
        if stop.requested:
            return


class FasterFifoPeer(ProducerPeer):
    """`faster_fifo.Queue` of as many bytes as its items in flight take.

    If `lists`, the receiver takes what is there, at most 100 items, as its documentation shows.
    """

    def __init__(self, nbytes: int, *, lists: bool = False) -> None:
        import faster_fifo
        import faster_fifo_reduction  # noqa: F401 - lets the queue be pickled

        in_flight = max_in_flight(nbytes)
        self._fifo: Any = faster_fifo.Queue(max_size_bytes=in_flight * (nbytes + _MESSAGE_BYTES))
        self.name = "faster-fifo lists" if lists else "faster-fifo"
        self._received: deque[Item] = deque()
        super().__init__(_feed_fifo, self._fifo, nbytes, max_backlog=2 + in_flight + _MAX_LIST * lists)
        self.receive: Callable[[], Item] = self._receive_listed if lists else self._receive

    def _receive(self) -> Item:
        item: Item = self._fifo.get(timeout=_DEADLINE_S)
        return item

    def _receive_listed(self) -> Item:
        if not self._received:
            self._received.extend(self._fifo.get_many(timeout=_DEADLINE_S, max_messages_to_get=_MAX_LIST))
        return self._received.popleft()

    def close(self) -> None:
        """End the producer; what is in flight is dropped."""
        self._process.terminate()
        self._join_producer()


_HEADER_BYTES = 64
"""The item's number, up to where the image may start."""


class _Services:
    """The service of the samples and that of the events, in a namespace of their own."""

    def __init__(self, folder: str, slots: int) -> None:
        import iceoryx2 as ice

        ice.set_log_level(ice.LogLevel.Error)
        config = ice.config.default()
        config.global_cfg.root_path = ice.Path.new(folder)
        config.global_cfg.prefix = ice.FileName.new(Path(folder).name)
        node = ice.NodeBuilder.new().config(config).create(ice.ServiceType.Ipc)
        self._node = node  # the services live as long as their node
        overwrites = False  # a positional argument
        samples = node.service_builder(ice.ServiceName.new("items")).publish_subscribe(ice.Slice[ctypes.c_uint8])
        samples = samples.payload_alignment(ice.Alignment.new(_HEADER_BYTES)).enable_safe_overflow(overwrites)
        self.samples = samples.subscriber_max_buffer_size(slots).open_or_create()
        self.events = node.service_builder(ice.ServiceName.new("events")).event().open_or_create()


def _view(payload: Any, nbytes: int) -> Image:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(payload.as_ptr()))


def _feed_loans(folder: str, free_slots: Any, nbytes: int) -> None:
    stop, image, nbytes_sent = StopFlag(), make_image(nbytes), _HEADER_BYTES + nbytes
    services = _Services(folder, max_in_flight(nbytes))
    publisher = services.samples.publisher_builder().initial_max_slice_len(nbytes_sent).create()
    notifier = services.events.notifier_builder().create()
    for number in count():
        free_slots.acquire()
        if stop.requested:
            return
        sample = publisher.loan_slice_uninit(nbytes_sent)
        sent = _view(sample.payload(), nbytes_sent)
        sent[:8].view(np.int64)[0] = number
        np.copyto(sent[_HEADER_BYTES:], image)
        sample.assume_init().send()
        notifier.notify()


class IceoryxPeer(ProducerPeer):
    """Publish and subscribe with loans. The image is valid until the next one is received."""

    name = "iceoryx2"

    def __init__(self, nbytes: int) -> None:
        self._nbytes, slots = nbytes, max_in_flight(nbytes)
        self._folder = tempfile.TemporaryDirectory(prefix="stagepipe_ice_")
        self._services = _Services(self._folder.name, slots)
        self._subscriber = self._services.samples.subscriber_builder().create()
        self._listener = self._services.events.listener_builder().create()
        self._free_slots = multiprocessing.get_context("forkserver").Semaphore(slots - 1)  # the receiver holds one
        self._held: Any = None
        super().__init__(_feed_loans, self._folder.name, self._free_slots, nbytes, max_backlog=2 + slots)
        self.receive: Callable[[], Item] = self._receive

    def _receive(self) -> Item:
        if self._held is not None:
            self._held.delete()
            self._held = None
            self._free_slots.release()
        while (sample := self._subscriber.receive()) is None:
            self._listener.blocking_wait()
        self._held = sample
        received = _view(sample.payload(), _HEADER_BYTES + self._nbytes)
        return make_item(int(received[:8].view(np.int64)[0]), received[_HEADER_BYTES:])

    def close(self) -> None:
        """End the producer; what is in flight is dropped."""
        self._process.terminate()
        self._free_slots.release()
        self._join_producer()
        if self._held is not None:
            self._held.delete()
        del self._subscriber, self._listener, self._services
        shared_memory = Path("/dev/shm")  # noqa: S108 - iceoryx2 leaves a segment of its own there
        for left in shared_memory.glob(f"{Path(self._folder.name).name}*"):
            left.unlink(missing_ok=True)
        self._folder.cleanup()
