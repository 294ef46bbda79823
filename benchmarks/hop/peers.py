"""The peers behind one interface: `receive` returns the next item, `close` ends the producer and leaves nothing behind.

Producers run forever, each in its own process. They are forked from a server that has no threads and holds no
descriptors of other peers. They stop on SIGTERM and send None as their last message.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from benchmarks.common.turn import end_process
from benchmarks.hop.payload import Item, make_image, make_item

_IN_FLIGHT_BYTES = 16 << 20
_PIPE_BYTES = 64 << 10  # pipe(7)


class Peer(Protocol):
    """A contestant. If `filled`, the whole image equals the prepared one and can be checked."""

    name: str
    filled: bool
    max_backlog: int
    """The most items that can pile up between two bursts; they are taken before the next burst is timed."""
    receive: Callable[[], Item]

    def close(self) -> None:
        """End the producer."""


def max_in_flight(nbytes: int) -> int:
    """Return the most items in flight for a mechanism without a bound of its own: what 16 MiB hold, 4 to 256.

    stagepipe's automatic window uses the same 16 MiB.
    """
    return max(4, min(256, _IN_FLIGHT_BYTES // max(nbytes, 1)))


class StopFlag:
    """A flag in a producer that SIGTERM sets; a check of it costs one attribute look-up."""

    def __init__(self) -> None:
        """Set it on SIGTERM; SIGINT is left to the receiver."""
        self.requested = False
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _on_sigterm(self, *_: object) -> None:
        self.requested = True


class ProducerPeer:
    """The base of peers with a producer process."""

    filled = True

    def __init__(self, target: Callable[..., None], *arguments: Any, max_backlog: int) -> None:
        self.max_backlog = max_backlog
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(target=target, args=arguments, daemon=True)
        self._process.start()

    def _join_producer(self) -> None:
        end_process(self._process)


# ---------------------------------------------------------------------------------------------- Pipe


def _feed(channel: Any, nbytes: int) -> None:
    """Send items into a Pipe's writer, or a Queue, until SIGTERM."""
    send = channel.send if isinstance(channel, Connection) else channel.put
    stop, image = StopFlag(), make_image(nbytes)
    for number in count():
        if stop.requested:
            break
        send(make_item(number, image))
    send(None)


class PipePeer(ProducerPeer):
    """`multiprocessing.Pipe(duplex=False)`, which pickles; its buffer limits the items in flight."""

    name = "Pipe"

    def __init__(self, nbytes: int) -> None:
        self._reader, writer = multiprocessing.Pipe(duplex=False)
        super().__init__(_feed, writer, nbytes, max_backlog=2 + _PIPE_BYTES // (nbytes + 100))
        writer.close()
        self.receive: Callable[[], Item] = self._reader.recv

    def close(self) -> None:
        """Take the items in flight, then end the producer."""
        self._process.terminate()
        while self._reader.recv() is not None:
            pass
        self._reader.close()
        self._join_producer()


# ---------------------------------------------------------------------------------------------- Queue


class QueuePeer(ProducerPeer):
    """`multiprocessing.Queue` with a maximum size; it pickles in a thread of the producer."""

    name = "Queue"

    def __init__(self, nbytes: int) -> None:
        self._queue: Any = multiprocessing.get_context("forkserver").Queue(max_in_flight(nbytes))
        super().__init__(
            _feed, self._queue, nbytes, max_backlog=2 + min(max_in_flight(nbytes), _PIPE_BYTES // (nbytes + 100))
        )
        self.receive: Callable[[], Item] = self._queue.get

    def close(self) -> None:
        """Take the items in flight, then end the producer."""
        self._process.terminate()
        while self._queue.get() is not None:
            pass
        self._queue.close()
        self._join_producer()


# ---------------------------------------------------------------------------------------------- memcpy


class MemcpyPeer:
    """Not a transport: `np.copyto` of the same bytes in this process, into warm buffers, each wrapped in a dict.

    `buffers` is the number of destinations that take turns. A fair comparison has as many as a pipeline has in flight,
    because a reader may still hold the last ones. A single buffer stays in the cache and shows that cost.
    """

    filled = True

    def __init__(self, nbytes: int, *, buffers: int) -> None:
        self.max_backlog = buffers
        self.name = "memcpy" if buffers > 1 else "memcpy to one"
        self._source = make_image(nbytes)
        self._targets = [np.ones(nbytes, np.uint8) for _ in range(buffers)]
        self._numbers = count()
        self.receive: Callable[[], Item] = self._copy

    def _copy(self) -> Item:
        number = next(self._numbers)
        target = self._targets[number % len(self._targets)]
        np.copyto(target, self._source)
        return make_item(number, target)

    def close(self) -> None:
        """Do nothing: there is no producer."""


# ---------------------------------------------------------------------------------------------- DataLoader


def _make_items(nbytes: int) -> Iterator[Item]:
    image = make_image(nbytes)
    return (make_item(number, image) for number in count())


def _identity(item: Any) -> Any:
    return item


class LoaderPeer:
    """torch's DataLoader with one worker over an IterableDataset, `batch_size=None`, and defaults for the rest.

    If `tensors`, its default conversion makes tensors of the arrays, and shared memory carries them. Otherwise a
    conversion that does nothing leaves them as arrays, and they are pickled.
    """

    filled = True
    max_backlog = 4  # it prefetches two items, its default

    def __init__(self, nbytes: int, *, tensors: bool) -> None:
        from torch.utils.data import DataLoader

        from benchmarks.common.torch_parts import Stream  # only a comparison with DataLoader imports torch

        self.name = "DataLoader torch" if tensors else "DataLoader NumPy"
        loader: Any = DataLoader(
            Stream(partial(_make_items, nbytes)),
            batch_size=None,
            num_workers=1,
            collate_fn=None if tensors else _identity,
            multiprocessing_context="forkserver",
        )
        self._iterator: Iterator[Item] = iter(loader)
        self.receive: Callable[[], Item] = self._iterator.__next__

    def close(self) -> None:
        """End the worker, which otherwise ends with the iterator."""
        del self.receive
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        self._iterator = iter(())
