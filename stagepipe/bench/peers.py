"""Measures multiprocessing's Pipe, Queue and SharedMemory: the cost of a message from a producer to a consumer.

The consumer runs in the caller's process, the producer (`bench.producer`) in a spawned one. Messages travel one at a
time. Between two messages both sides touch memory, as the sides of a hop do (`calibration.simulate_stage_work`). The
cost is the CPU time of the threads that send, of the thread that receives, and of the release of what was received. CPU
time leaves out all waits, even those in which another process had the CPU. A hop's own timing includes these, so the
comparison never favours the hop. Every byte is checked, outside the measured time.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from time import thread_time_ns
from typing import Any, Protocol, Self

import numpy as np

from stagepipe.bench.producer import ByteArray, make_random_bytes, run_producer
from stagepipe.calibration import RESPONSE_TIMEOUT_S, WORK_BUFFER_BYTES, simulate_stage_work
from stagepipe.core import RunError

Item = dict[str, Any]
_SPAWN_CONTEXT = multiprocessing.get_context("spawn")
_POLL_INTERVAL_S = 20e-6
"""Between two looks at a Queue, which has no wait that leaves the message in it."""


def check_received(name: str, received: Item, expected: ByteArray) -> None:
    """Raise RunError unless every byte arrived as expected.

    >>> check_received("Pipe", {"data": np.zeros(2, np.uint8)}, np.ones(2, np.uint8))
    Traceback (most recent call last):
    stagepipe.core.errors.RunError: Pipe delivered 2 of 2 bytes wrong
    """
    data = received["data"]
    if data.shape != expected.shape or data.dtype != expected.dtype:
        raise RunError(f"{name} delivered {data.dtype} of shape {data.shape}, expected {expected.size} bytes")
    if not np.array_equal(data, expected):
        raise RunError(f"{name} delivered {np.count_nonzero(data != expected)} of {expected.size} bytes wrong")


@contextmanager
def _block_sigint() -> Iterator[None]:
    """Start processes that inherit a blocked SIGINT: Ctrl-C reaches the caller alone, which then kills them.

    In the caller, Ctrl-C is delayed until the block ends. A process that was only half started would print an error.
    """
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    received_signals: list[int] = []
    is_main_thread = threading.current_thread() is threading.main_thread()  # Python handles signals only there
    handler = (
        signal.signal(signal.SIGINT, lambda number, _: received_signals.append(number)) if is_main_thread else None
    )
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if is_main_thread:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    if received_signals:
        raise KeyboardInterrupt


class PeerBenchmark:
    """A mechanism of multiprocessing with its producer process. A context manager.

    `mechanism` is one of `PEER_MECHANISMS`. The producer sends messages of up to `max_message_bytes`.

    >>> with PeerBenchmark("Pipe", 1 << 20) as peer:  # doctest: +SKIP
    ...     peer.measure_costs_ns(4096, 3)
    [21000, 20500, 20700]
    """

    def __init__(self, mechanism: str, max_message_bytes: int) -> None:
        self.name = mechanism
        self._expected = make_random_bytes(max_message_bytes)
        self._work_buffer = np.zeros(WORK_BUFFER_BYTES, np.uint8)
        request_connection, producer_connection = _SPAWN_CONTEXT.Pipe()
        self._request_connection = request_connection
        self._consumer = _CONSUMER_TYPES[mechanism]()
        self._producer = _SPAWN_CONTEXT.Process(
            target=run_producer,
            args=(mechanism, max_message_bytes, producer_connection, self._consumer.channel),
            daemon=True,
        )
        try:
            with _block_sigint():
                self._producer.start()
            producer_connection.close()
            self._consumer.on_producer_started()
        except BaseException:  # interrupted: the producer must not outlive its channels
            self._kill_producer()
            raise

    def __enter__(self) -> Self:
        """Return the peer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the producer and close the channels."""
        self._kill_producer()
        self._request_connection.close()
        self._consumer.close()

    def _kill_producer(self) -> None:
        if self._producer.pid is not None:
            self._producer.kill()
            self._producer.join()

    def measure_costs_ns(self, nbytes: int, count: int) -> list[int]:
        """Measure the cost of `count` messages of `nbytes`, in ns each. Raises RunError if one is missing or wrong."""
        try:
            self._request_connection.send((nbytes, count))
            receive_costs_ns = [self._receive_checked_ns(self._expected[:nbytes]) for _ in range(count)]
            self._wait_until_ready(self._request_connection.poll)
            send_costs_ns = self._request_connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise self._make_no_response_error() from error
        return [sum(sides) for sides in zip(receive_costs_ns, send_costs_ns, strict=True)]

    def _receive_checked_ns(self, expected: ByteArray) -> int:
        """Receive a message and check it. Returns the cost of receiving and releasing it, in ns."""
        simulate_stage_work(self._work_buffer)
        self._wait_until_ready(self._consumer.wait_readable)
        start_ns = thread_time_ns()
        item = self._consumer.receive()
        received_ns = thread_time_ns()
        check_received(self.name, item, expected)
        del item
        checked_ns = thread_time_ns()
        self._consumer.release()
        cost_ns = thread_time_ns() - checked_ns + received_ns - start_ns
        self._request_connection.send(None)
        return cost_ns

    def _wait_until_ready(self, poll: Callable[[float], bool]) -> None:
        if not poll(RESPONSE_TIMEOUT_S):
            raise self._make_no_response_error()

    def _make_no_response_error(self) -> RunError:
        return RunError(
            f"cannot measure multiprocessing's {self.name}: its producer did not answer "
            f"(exit code {self._producer.exitcode})"
        )


class _Consumer(Protocol):
    """The receiving side of a mechanism. `channel` is what the producer sends on."""

    channel: Any

    def on_producer_started(self) -> None:
        """Close what only the producer needs."""

    def wait_readable(self, timeout_s: float) -> bool:
        """Wait until a message can be received. Returns False after `timeout_s`."""

    def receive(self) -> Item:
        """Receive an item. Its array is valid until `release`."""

    def release(self) -> None:
        """Free the item that was received last."""

    def close(self) -> None:
        """Close this side."""


class _PipeConsumer:
    """Receives from a Pipe."""

    def __init__(self) -> None:
        reader, channel = _SPAWN_CONTEXT.Pipe(duplex=False)
        self._reader = reader
        self.channel: Any = channel

    def on_producer_started(self) -> None:
        """Close the writing end, which the producer has now."""
        self.channel.close()

    def wait_readable(self, timeout_s: float) -> bool:
        """Wait until a message can be received. Returns False after `timeout_s`."""
        return self._reader.poll(timeout_s)

    def receive(self) -> Item:
        """Receive an item."""
        item: Item = self._reader.recv()
        return item

    def release(self) -> None:
        """Nothing to free: the item is a copy."""

    def close(self) -> None:
        """Close the reading end."""
        self._reader.close()


class _QueueConsumer:
    """Receives from a Queue."""

    def __init__(self) -> None:
        self.channel: Any = _SPAWN_CONTEXT.Queue()

    def on_producer_started(self) -> None:
        """Nothing to close: both sides share the whole Queue."""

    def wait_readable(self, timeout_s: float) -> bool:
        """Poll until a message can be received. Returns False after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.channel.empty():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_INTERVAL_S)
        return True

    def receive(self) -> Item:
        """Receive an item."""
        item: Item = self.channel.get()
        return item

    def release(self) -> None:
        """Nothing to free: the item is a copy."""

    def close(self) -> None:
        """Close the Queue."""
        self.channel.close()


class _SharedMemoryConsumer(_PipeConsumer):
    """Receives from SharedMemory: one object per message, with its name sent over a Pipe. The receiver unlinks it."""

    def __init__(self) -> None:
        super().__init__()
        self._shared_memory: SharedMemory | None = None

    def receive(self) -> Item:
        """Receive an item. Its array is valid until `release`."""
        name, nbytes = self._reader.recv()
        self._shared_memory = shared_memory = SharedMemory(name)
        return {"data": np.ndarray((nbytes,), np.uint8, shared_memory.buf)}

    def release(self) -> None:
        """Close and unlink the shared memory of the last item."""
        if self._shared_memory is not None:
            self._shared_memory.close()
            self._shared_memory.unlink()
            self._shared_memory = None


_CONSUMER_TYPES: dict[str, Callable[[], _Consumer]] = {
    "Pipe": _PipeConsumer,
    "Queue": _QueueConsumer,
    "SharedMemory": _SharedMemoryConsumer,
}
