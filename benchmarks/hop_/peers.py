"""The peers behind one interface: `receive` gives the next item, `close` ends the producer and leaves nothing behind.

Producers run for ever, each in a process of its own, forked from a server that holds no thread and no descriptor of
anybody else's. They stop on SIGTERM and say so by a last message, None.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Protocol

import numpy as np

from hop_.payload import Item, make_image, make_item

_WINDOW_BYTES = 16 << 20
_PIPE_BYTES = 64 << 10  # pipe(7)
_DEADLINE_S = 10.0


class Peer(Protocol):
    """A contestant. `filled`: the whole image is the prepared one, and can be checked."""

    name: str
    filled: bool
    warm: int
    """How many items may have piled up between two bursts; they are taken away before the next is timed."""
    receive: Callable[[], Item]

    def close(self) -> None:
        """End it."""


def window(nbytes: int) -> int:
    """How many items may be under way where the mechanism itself has no bound: what 16 MiB hold, 4 to 256.

    stagepipe's automatic window goes by the same 16 MiB.
    """
    return max(4, min(256, _WINDOW_BYTES // max(nbytes, 1)))


class _Stop:
    """Set by SIGTERM in a producer; looking at it costs an attribute."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _ask(self, *_: object) -> None:
        self.asked = True


class _Produced:
    """A producer process and what is common to those that have one."""

    filled = True

    def __init__(self, target: Callable[..., None], *arguments: Any, warm: int) -> None:
        self.warm = warm
        context = multiprocessing.get_context("forkserver")
        self._process = context.Process(target=target, args=arguments, daemon=True)
        self._process.start()

    def _end(self) -> None:
        self._process.join(_DEADLINE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


# ---------------------------------------------------------------------------------------------- Pipe


def _feed_pipe(writer: Connection, nbytes: int) -> None:
    stop, image = _Stop(), make_image(nbytes)
    for number in count():
        if stop.asked:
            break
        writer.send(make_item(number, image))
    writer.send(None)


class PipePeer(_Produced):
    """`multiprocessing.Pipe(duplex=False)`, which pickles, and whose buffer bounds it."""

    name = "Pipe"

    def __init__(self, nbytes: int) -> None:
        """Start the producer."""
        self._reader, writer = multiprocessing.Pipe(duplex=False)
        super().__init__(_feed_pipe, writer, nbytes, warm=2 + _PIPE_BYTES // (nbytes + 100))
        writer.close()
        self.receive: Callable[[], Item] = self._reader.recv

    def close(self) -> None:
        """Take what is under way, then end."""
        self._process.terminate()
        while self._reader.recv() is not None:
            pass
        self._reader.close()
        self._end()


# ---------------------------------------------------------------------------------------------- Queue


def _feed_queue(queue: Any, nbytes: int) -> None:
    stop, image = _Stop(), make_image(nbytes)
    for number in count():
        if stop.asked:
            break
        queue.put(make_item(number, image))
    queue.put(None)


class QueuePeer(_Produced):
    """`multiprocessing.Queue` with a bound; it pickles in a thread of the producer."""

    name = "Queue"

    def __init__(self, nbytes: int) -> None:
        """Start the producer."""
        self._queue: Any = multiprocessing.get_context("forkserver").Queue(window(nbytes))
        super().__init__(_feed_queue, self._queue, nbytes, warm=2 + min(window(nbytes), _PIPE_BYTES // (nbytes + 100)))
        self.receive: Callable[[], Item] = self._queue.get

    def close(self) -> None:
        """Take what is under way, then end."""
        self._process.terminate()
        while self._queue.get() is not None:
            pass
        self._queue.close()
        self._end()


# ---------------------------------------------------------------------------------------------- SharedMemory


def _feed_segments(writer: Connection, room: Any, nbytes: int) -> None:
    stop, image = _Stop(), make_image(nbytes)
    for number in count():
        room.acquire()
        if stop.asked:
            break
        segment = SharedMemory(create=True, size=max(nbytes, 1))
        np.copyto(np.ndarray((nbytes,), np.uint8, segment.buf), image)
        writer.send((number, number % 1000, segment.name))
        segment.close()
    writer.send(None)


class SegmentPeer(_Produced):
    """`multiprocessing.shared_memory`: one segment a message, its name by a Pipe; the receiver unlinks it.

    A segment has at least one byte. The image is valid until the next one is received.
    """

    name = "SharedMemory"

    def __init__(self, nbytes: int) -> None:
        """Start the producer."""
        self._nbytes = nbytes
        self._reader, writer = multiprocessing.Pipe(duplex=False)
        self._room = multiprocessing.get_context("forkserver").Semaphore(window(nbytes))
        self._segment: SharedMemory | None = None
        super().__init__(_feed_segments, writer, self._room, nbytes, warm=2 + window(nbytes))
        writer.close()
        self.receive: Callable[[], Item] = self._receive

    def _receive(self) -> Item:
        self._drop()
        message = self._reader.recv()
        if message is None:
            raise EOFError
        number, label, name = message
        self._segment = SharedMemory(name)
        return {"id": number, "label": label, "image": np.ndarray((self._nbytes,), np.uint8, self._segment.buf)}

    def _drop(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment.unlink()
            self._segment = None
            self._room.release()

    def close(self) -> None:
        """Unlink what is under way, then end."""
        self._process.terminate()
        self._room.release()
        try:
            while True:
                self._receive()
        except EOFError:
            self._reader.close()
        self._end()


# ---------------------------------------------------------------------------------------------- memcpy


class MemcpyPeer:
    """No transport: `np.copyto` of the same bytes in this process, into warm buffers, a dict around each.

    `buffers`: how many destinations take turns. As many as a pipeline has under way is what a transport can be held
    against, since its reader may still hold the last ones; one alone stays in the cache and says what that costs.
    """

    filled = True

    def __init__(self, nbytes: int, *, buffers: int) -> None:
        """Warm the buffers by writing to each."""
        self.warm = buffers
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
        """There is nothing to end."""


# ---------------------------------------------------------------------------------------------- DataLoader


def _identity(item: Any) -> Any:
    return item


def _stream(nbytes: int) -> Any:
    """An endless IterableDataset. torch is imported by those who compare with it alone."""
    from hop_.stream import Stream

    return Stream(nbytes)


class LoaderPeer:
    """torch's DataLoader with one worker over an IterableDataset, `batch_size=None`, everything else as it comes.

    `tensors`: its default conversion makes tensors of the arrays, which travel in shared memory; else a conversion
    that does nothing leaves them arrays, which are pickled.
    """

    filled = True
    warm = 4  # it asks for two items in advance, its default

    def __init__(self, nbytes: int, *, tensors: bool) -> None:
        """Start the worker."""
        from torch.utils.data import DataLoader

        self.name = "DataLoader torch" if tensors else "DataLoader NumPy"
        loader: Any = DataLoader(
            _stream(nbytes),
            batch_size=None,
            num_workers=1,
            collate_fn=None if tensors else _identity,
            multiprocessing_context="forkserver",
        )
        self._iterator: Iterator[Item] = iter(loader)
        self.receive: Callable[[], Item] = self._iterator.__next__

    def close(self) -> None:
        """Its worker ends when the iterator goes."""
        del self.receive
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        self._iterator = iter(())
