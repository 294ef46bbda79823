"""`multiprocessing.shared_memory` by hand: a segment for each message, or one segment whose slots are used again."""

from __future__ import annotations

import multiprocessing
import secrets
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from benchmarks.hop.payload import Item, make_image
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
