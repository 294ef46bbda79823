"""faster-fifo: a queue in shared memory, with a lock and no thread, that pickles. Where its package is installed."""

from __future__ import annotations

import queue
from collections.abc import Callable
from itertools import count
from typing import Any

from benchmarks.hop.payload import Item, make_image, make_item
from benchmarks.hop.peers import ProducerPeer, StopFlag, max_in_flight

_MESSAGE_BYTES = 200
"""More than the pickle of an item without its image."""
_WAIT_S = 0.2


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
    """`faster_fifo.Queue` of as many bytes as its items in flight take, one item a call."""

    name = "faster-fifo"

    def __init__(self, nbytes: int) -> None:
        """Start the producer."""
        import faster_fifo
        import faster_fifo_reduction  # noqa: F401 - lets the queue be pickled

        in_flight = max_in_flight(nbytes)
        self._fifo: Any = faster_fifo.Queue(max_size_bytes=in_flight * (nbytes + _MESSAGE_BYTES))
        super().__init__(_feed, self._fifo, nbytes, max_backlog=2 + in_flight)
        self.receive: Callable[[], Item] = self._receive

    def _receive(self) -> Item:
        item: Item = self._fifo.get(timeout=10.0)
        return item

    def close(self) -> None:
        """End the producer; what is in flight is dropped."""
        self._process.terminate()
        self._join_producer()
