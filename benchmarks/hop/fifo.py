"""faster-fifo: a queue in shared memory, with a lock and no thread, that pickles. Where its package is installed."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from benchmarks.hop.payload import Item, make_image, make_item
from benchmarks.hop.peers import ProducerPeer, StopFlag, max_in_flight

_MESSAGE_BYTES = 200
"""More than the pickle of an item without its image."""
_WAIT_S = 0.2
_DEADLINE_S = 10.0
_MAX_LIST = 100


def _feed(fifo: Any, nbytes: int) -> None:
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
        super().__init__(_feed, self._fifo, nbytes, max_backlog=2 + in_flight + _MAX_LIST * lists)
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
