"""multiprocessing's Pipe, Queue and SharedMemory: what a message costs, one at a time, producer to consumer.

The producer is a spawned process (`serve`), the consumer is the caller. Both rest between two messages as the sides of
a hop do (`calibration.trip.rest`). Counted is what both sides work: the processor time of the threads that send, of the
one that receives, and of letting go of what was received. It leaves out all waits, also those in which another process
took the processor, which a hop's own timing cannot; so it is never in a hop's favour. Every byte is compared, outside
of it.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from time import thread_time_ns
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import RunError
from stagepipe.plan.calibration.trip import DEADLINE_S, WORK_BYTES, rest

Bytes = NDArray[np.uint8]
Item = dict[str, Any]
_SPAWN = multiprocessing.get_context("spawn")
_FEEDER = "QueueFeederThread"
"""The thread of a Queue that pickles and writes."""
_LOOK_S = 20e-6


def make_bytes(nbytes: int) -> Bytes:
    """Random bytes, the same in both processes; a smaller size is the beginning of a larger one."""
    return np.frombuffer(np.random.default_rng(17).bytes(nbytes), np.uint8)


def check(name: str, received: Item, expected: Bytes) -> None:
    """RunError unless every byte is right.

    >>> check("Pipe", {"data": np.zeros(2, np.uint8)}, np.ones(2, np.uint8))
    Traceback (most recent call last):
    stagepipe.core.errors.RunError: Pipe delivered 2 of 2 bytes wrong
    """
    data = received["data"]
    if data.shape != expected.shape or data.dtype != expected.dtype:
        raise RunError(f"{name} delivered {data.dtype} of shape {data.shape}, not {expected.size} bytes")
    if not np.array_equal(data, expected):
        raise RunError(f"{name} delivered {np.count_nonzero(data != expected)} of {expected.size} bytes wrong")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started in here inherits a blocked SIGINT: Ctrl-C is for the caller, who ends the process.

    For the caller it is put off until the process has all that it needs to begin: half started, it would complain.
    """
    resource_tracker.ensure_running()  # it would unblock the signal again
    came: list[int] = []
    put_off = threading.current_thread() is threading.main_thread()  # in which alone Python sees signals
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number)) if put_off else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if put_off:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if came:
        raise KeyboardInterrupt


class Peer:
    """A mechanism with its producer. A context manager.

    >>> with Peer("Pipe", 1 << 20) as peer:  # doctest: +SKIP
    ...     peer.measure(4096, 3)
    [21000, 20500, 20700]
    """

    def __init__(self, name: str, most_bytes: int) -> None:
        """`name` is of `model.PEERS`; starts the producer, which can send up to `most_bytes`."""
        self.name = name
        self._expected, self._work = make_bytes(most_bytes), np.zeros(WORK_BYTES, np.uint8)
        self._asking, asked = _SPAWN.Pipe()
        self._consumer = _CONSUMERS[name]()
        self._process = _SPAWN.Process(
            target=serve, args=(name, most_bytes, asked, self._consumer.channel), daemon=True
        )
        try:
            with _uninterrupted():
                self._process.start()
            asked.close()
            self._consumer.started()
        except BaseException:  # interrupted: it must not meet channels that are gone
            self._end()
            raise

    def __enter__(self) -> Self:
        """The peer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the producer."""
        self._end()
        self._asking.close()
        self._consumer.close()

    def _end(self) -> None:
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()

    def measure(self, nbytes: int, count: int) -> list[int]:
        """What each of `count` messages with so many bytes cost, in ns. RunError if one does not come or is wrong."""
        try:
            self._asking.send((nbytes, count))
            received = [self._receive(self._expected[:nbytes]) for _ in range(count)]
            self._wait(self._asking.poll)
            sent = self._asking.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise self._silent() from error
        return [sum(sides) for sides in zip(received, sent, strict=True)]

    def _receive(self, expected: Bytes) -> int:
        """Receive a message and check it: what that cost this side."""
        rest(self._work)
        self._wait(self._consumer.ready)
        begin = thread_time_ns()
        item = self._consumer.receive()
        received = thread_time_ns()
        check(self.name, item, expected)
        del item
        checked = thread_time_ns()
        self._consumer.let_go()
        cost_ns = thread_time_ns() - checked + received - begin
        self._asking.send(None)
        return cost_ns

    def _wait(self, ready: Callable[[float], bool]) -> None:
        if not ready(DEADLINE_S):
            raise self._silent()

    def _silent(self) -> RunError:
        return RunError(
            f"cannot measure multiprocessing's {self.name}: its producer sends nothing "
            f"(exit code {self._process.exitcode})"
        )


# ---------------------------------------------------------------------------------------------- the consumer's side


class _PipeConsumer:
    """Of a Pipe: its reading end."""

    def __init__(self) -> None:
        self._reader, self.channel = _SPAWN.Pipe(duplex=False)

    def started(self) -> None:
        """The producer has its end."""
        self.channel.close()

    def ready(self, timeout_s: float) -> bool:
        """Whether something has come."""
        return self._reader.poll(timeout_s)

    def receive(self) -> Item:
        """The item."""
        item: Item = self._reader.recv()
        return item

    def let_go(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Close it."""
        self._reader.close()


class _QueueConsumer:
    """Of a Queue."""

    def __init__(self) -> None:
        self.channel: Any = _SPAWN.Queue()

    def started(self) -> None:
        """Both sides hold all of it."""

    def ready(self, timeout_s: float) -> bool:
        """Whether something has come: a Queue has no wait without taking, so it is looked at often."""
        deadline = time.monotonic() + timeout_s
        while self.channel.empty():
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def receive(self) -> Item:
        """The item."""
        item: Item = self.channel.get()
        return item

    def let_go(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Close it."""
        self.channel.close()


class _SegmentConsumer(_PipeConsumer):
    """Of SharedMemory: one segment a message, its name by a Pipe; who has received it unlinks it."""

    def __init__(self) -> None:
        super().__init__()
        self._segment: SharedMemory | None = None

    def receive(self) -> Item:
        """The item; its array is valid until it is let go."""
        name, nbytes = self._reader.recv()
        self._segment = segment = SharedMemory(name)
        return {"data": np.ndarray((nbytes,), np.uint8, segment.buf)}

    def let_go(self) -> None:
        """Give the segment back."""
        if self._segment is not None:
            self._segment.close()
            self._segment.unlink()
            self._segment = None


_CONSUMERS: dict[str, Callable[[], Any]] = {
    "Pipe": _PipeConsumer,
    "Queue": _QueueConsumer,
    "SharedMemory": _SegmentConsumer,
}


# ---------------------------------------------------------------------------------------------- the producer's side


def serve(name: str, most_bytes: int, asked: Connection, channel: Any) -> None:
    """In the spawned process: send what is asked for, one message at a time, and tell what each cost, in ns."""
    whole, work = make_bytes(most_bytes), np.zeros(WORK_BYTES, np.uint8)
    send = {"Pipe": channel_send, "Queue": queue_put, "SharedMemory": segment_send}[name]
    while True:
        try:
            nbytes, count = asked.recv()
            asked.send([_cost_ns(send, channel, whole[:nbytes], work, asked) for _ in range(count)])
        except (EOFError, OSError):  # the caller is gone
            return


def _cost_ns(send: Callable[[Any, Bytes], None], channel: Any, data: Bytes, work: Bytes, asked: Connection) -> int:
    """Send, wait until it is there, and say what that cost: the processor time of this thread and of a Queue's."""
    rest(work)
    feeder_ns, begin = _feeder_ns(), thread_time_ns()
    send(channel, data)
    own_ns = thread_time_ns() - begin
    asked.recv()
    return own_ns + _feeder_ns() - feeder_ns


def _feeder_ns() -> int:
    for thread in threading.enumerate():
        if thread.name == _FEEDER and thread.ident is not None:
            return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
    return 0


def channel_send(writer: Connection, data: Bytes) -> None:
    """Of a Pipe: the item, pickled."""
    writer.send({"data": data})


def queue_put(queue: Any, data: Bytes) -> None:
    """Of a Queue: the item; its thread pickles it."""
    queue.put({"data": data})


def segment_send(writer: Connection, data: Bytes) -> None:
    """Of SharedMemory: a new segment."""
    segment = SharedMemory(create=True, size=data.size)
    np.copyto(np.ndarray(data.shape, np.uint8, segment.buf), data)
    writer.send((segment.name, data.size))
    segment.close()
