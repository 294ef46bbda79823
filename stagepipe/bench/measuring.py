"""Runs a bench: measures the mechanisms of a hop and of multiprocessing in interleaved rounds, within a time budget.

`calibration.RoundTrip` measures the hop. For multiprocessing's Pipe, Queue and SharedMemory, a producer in a spawned
process sends messages, one at a time, to the consumer in the caller's process. Between two messages both sides touch
memory, as the sides of a hop do (`calibration.simulate_stage_work`). The cost is the CPU time of the sending threads,
of the receiving thread, and of the release of the received message. CPU time excludes all waits, even those in which
another process had the CPU. The timing of a hop includes such waits, so the comparison never favours the hop. Every
byte is checked, outside the measured time.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from time import monotonic, thread_time_ns
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stagepipe.bench.result import BENCH_SIZES_BYTES, COLD, HOP_MECHANISMS, PEER_MECHANISMS, BenchResult, CostPoint
from stagepipe.calibration import (
    RESPONSE_TIMEOUT_S,
    WORK_BUFFER_BYTES,
    RoundTrip,
    fit_curves,
    make_multi_buffer_item,
    select_single_buffer,
    simulate_stage_work,
)
from stagepipe.core import RunError
from stagepipe.costs import CostMeasurement
from stagepipe.machine import describe_host, detect_machine, read_cpu_model
from stagepipe.timing import TransferKind

# ------------------------------------------------------------------ the producer, in a spawned process

ByteArray = NDArray[np.uint8]
_FEEDER_THREAD_NAME = "QueueFeederThread"
"""CPython's name of the thread of a Queue that pickles and writes."""


def make_random_bytes(nbytes: int) -> ByteArray:
    """Random bytes, the same in every process. A smaller size is a prefix of a larger one."""
    return np.frombuffer(np.random.default_rng(17).bytes(nbytes), np.uint8)


def run_producer(mechanism: str, max_message_bytes: int, request_connection: Connection, channel: Any) -> None:
    """Run the producer, in the spawned process: send the requested messages and reply with the cost of each, in ns."""
    data = make_random_bytes(max_message_bytes)
    work_buffer = np.zeros(WORK_BUFFER_BYTES, np.uint8)
    send = {"Pipe": send_by_pipe, "Queue": put_in_queue, "SharedMemory": send_by_shared_memory}[mechanism]
    while True:
        try:
            nbytes, count = request_connection.recv()
            request_connection.send(
                [_measure_send_ns(send, channel, data[:nbytes], work_buffer, request_connection) for _ in range(count)]
            )
        except (EOFError, OSError):  # the caller has exited
            return


def _measure_send_ns(
    send: Callable[[Any, ByteArray], None],
    channel: Any,
    data: ByteArray,
    work_buffer: ByteArray,
    request_connection: Connection,
) -> int:
    """Send a message and wait for its receipt. Returns the CPU time of this thread and of a Queue's thread, in ns."""
    simulate_stage_work(work_buffer)
    feeder_start_ns = _read_feeder_cpu_ns()
    start_ns = thread_time_ns()
    send(channel, data)
    send_ns = thread_time_ns() - start_ns
    request_connection.recv()
    return send_ns + _read_feeder_cpu_ns() - feeder_start_ns


def _read_feeder_cpu_ns() -> int:
    for thread in threading.enumerate():
        if thread.name == _FEEDER_THREAD_NAME and thread.ident is not None:
            return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
    return 0


def send_by_pipe(writer: Connection, data: ByteArray) -> None:
    """Send an item over a Pipe, which pickles it."""
    writer.send({"data": data})


def put_in_queue(queue: Any, data: ByteArray) -> None:
    """Put an item in a Queue, whose thread pickles it."""
    queue.put({"data": data})


def send_by_shared_memory(writer: Connection, data: ByteArray) -> None:
    """Copy an item into new shared memory and send its name over a Pipe."""
    shared_memory = SharedMemory(create=True, size=data.size)
    np.copyto(np.ndarray(data.shape, np.uint8, shared_memory.buf), data)
    writer.send((shared_memory.name, data.size))
    shared_memory.close()


# ------------------------------------------------------------------ multiprocessing, in the caller's process

Item = dict[str, Any]
_SPAWN_CONTEXT = multiprocessing.get_context("spawn")
_POLL_INTERVAL_S = 20e-6
"""The interval between two polls of a Queue, which cannot wait without taking the message."""


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
    """Start processes that inherit a blocked SIGINT: Ctrl-C reaches only the caller, which then kills them.

    In the caller, Ctrl-C is delayed until the block ends. A half-started process would print an error.
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


class _PipeConsumer:
    """Receives from a Pipe. The producer sends on `channel`."""

    def __init__(self) -> None:
        reader, channel = _SPAWN_CONTEXT.Pipe(duplex=False)
        self._reader = reader
        self.channel: Any = channel

    def on_producer_started(self) -> None:
        """Close the end that only the producer needs."""
        self.channel.close()

    def wait_readable(self, timeout_s: float) -> bool:
        """Wait until a message can be received. Returns False after `timeout_s`."""
        return self._reader.poll(timeout_s)

    def receive(self) -> Item:
        """Receive an item. Its array is valid until `release`."""
        item: Item = self._reader.recv()
        return item

    def release(self) -> None:
        """Free the last item. It is a copy, so there is nothing to free."""

    def close(self) -> None:
        """Close this side."""
        self._reader.close()


class _QueueConsumer(_PipeConsumer):
    """Receives from a Queue."""

    def __init__(self) -> None:
        self.channel = _SPAWN_CONTEXT.Queue()

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

    def close(self) -> None:
        """Close the Queue."""
        self.channel.close()


class _SharedMemoryConsumer(_PipeConsumer):
    """Receives from SharedMemory: one object per message, whose name comes over a Pipe. The receiver unlinks it."""

    _shared_memory: SharedMemory

    def receive(self) -> Item:
        """Receive an item."""
        name, nbytes = self._reader.recv()
        self._shared_memory = SharedMemory(name)
        return {"data": np.ndarray((nbytes,), np.uint8, self._shared_memory.buf)}

    def release(self) -> None:
        """Close and unlink the shared memory of the last item."""
        self._shared_memory.close()
        self._shared_memory.unlink()


_CONSUMER_TYPES: dict[str, type[_PipeConsumer]] = {
    "Pipe": _PipeConsumer,
    "Queue": _QueueConsumer,
    "SharedMemory": _SharedMemoryConsumer,
}


# ------------------------------------------------------------------ the rounds

ProgressCallback = Callable[[float], None]
"""Receives the used share of the time budget, 0 to 1."""
_MIN_ROUNDS = 3
"""The first copy of a large message may be cold, which leaves two that are not."""
_COLD_ROUNDS = 3
"""Each cold message takes memory that was never touched."""
_MEMORY_PER_MESSAGE_RATIO = 32
"""Memory use of the largest message, relative to its size: five processes hold copies of it."""
_LARGE_MESSAGE_BYTES = 1 << 20
"""Larger messages go one at a time, so that they touch few blocks."""


@dataclass(frozen=True)
class BenchBudget:
    """The approximate duration of the measurement, and the maximum message size."""

    duration_s: float
    max_message_bytes: int


FULL_BUDGET = BenchBudget(18.0, BENCH_SIZES_BYTES[-1])
"""The default. Process starts are not included, so a bench takes about 20 s."""
QUICK_BUDGET = BenchBudget(4.0, 16 << 20)
"""The budget of `--quick`, without the process starts."""


def run_bench(budget: BenchBudget = FULL_BUDGET, on_progress: ProgressCallback | None = None) -> BenchResult:
    """Measure the mechanisms of a hop and the peers side by side, at every size.

    >>> run_bench(QUICK_BUDGET).crossover_summary  # doctest: +SKIP
    'shared memory is cheaper from 3.6 kB up: at 4.1 kB it takes 30 µs, the pipe 90 µs'

    Raises RunError if a process cannot be started or does not answer, or if a byte arrives wrong.
    """
    start_s = monotonic()
    sizes_bytes = choose_sizes_bytes(budget.max_message_bytes, detect_machine().memory_bytes)
    load_average = os.getloadavg()[0]
    with ExitStack() as stack:
        peers = [stack.enter_context(PeerBenchmark(name, sizes_bytes[-1])) for name in PEER_MECHANISMS]
        round_trip = stack.enter_context(RoundTrip())
        runner = _RoundRunner(round_trip, peers, sizes_bytes)
        runner.warm_up()
        rounds = _run_rounds(budget.duration_s, runner.run_round, on_progress or (lambda _: None))
        round_trip.stop()
        outbound, returned = round_trip.summarize()
        serialization_ns = round_trip.serialization_ns
    return BenchResult(
        points={
            **make_hop_points(outbound, returned, sizes_bytes, serialization_ns),
            **{name: make_peer_points(costs) for name, costs in runner.peer_costs_ns.items()},
        },
        curves=fit_curves(outbound, returned),
        serialization_ns=serialization_ns,
        duration_s=monotonic() - start_s,
        rounds=rounds,
        host={
            "cpu": read_cpu_model(),
            **describe_host(),
            "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        },
        load_average=load_average,
    )


def choose_sizes_bytes(max_message_bytes: int, memory_bytes: int) -> tuple[int, ...]:
    """The sizes up to `max_message_bytes` that fit a machine with `memory_bytes`. Always includes 1 MiB.

    >>> choose_sizes_bytes(16 << 20, 64 << 20)[-1] >> 20
    1
    """
    max_message_bytes = min(max_message_bytes, memory_bytes // _MEMORY_PER_MESSAGE_RATIO)
    return tuple(size for size in BENCH_SIZES_BYTES if size <= max(max_message_bytes, _LARGE_MESSAGE_BYTES))


def _run_rounds(duration_s: float, run_round: Callable[[int], None], on_progress: ProgressCallback) -> int:
    """Run as many rounds as fit into `duration_s`, at least three. Returns their number."""
    start_s = monotonic()
    longest_round_s = 0.0
    rounds = 0
    while rounds < _MIN_ROUNDS or monotonic() - start_s + longest_round_s < duration_s:
        round_start_s = monotonic()
        run_round(rounds)
        rounds += 1
        longest_round_s = max(longest_round_s, monotonic() - round_start_s)
        on_progress(min((monotonic() - start_s) / duration_s, 1.0))
    return rounds


def _choose_repetitions(nbytes: int) -> int:
    """How often to measure a size in a round. Small messages are cheap and are measured more often."""
    return 6 if nbytes <= 64 << 10 else 3 if nbytes <= _LARGE_MESSAGE_BYTES else 1


@dataclass
class _RoundRunner:
    """Runs rounds over the hop and the peers. Collects the peers' costs in ns, by mechanism and size."""

    round_trip: RoundTrip
    peers: Sequence[PeerBenchmark]
    sizes_bytes: Sequence[int]
    peer_costs_ns: dict[str, dict[int, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        data = make_random_bytes(self.sizes_bytes[-1])
        self._items = {size: {"data": data[:size]} for size in self.sizes_bytes}
        self._multi_buffer_item = make_multi_buffer_item()

    def warm_up(self) -> None:
        """Send the first messages of each peer, which cost more than later ones, and discard their costs."""
        for peer in self.peers:
            peer.measure_costs_ns(self.sizes_bytes[0], 3)

    def run_round(self, round_index: int) -> None:
        """Measure all sizes once. The order of the sizes alternates between rounds."""
        for size in self.sizes_bytes if round_index % 2 else self.sizes_bytes[::-1]:
            self._measure_hop(size, with_cold=round_index < _COLD_ROUNDS)
            for peer in self.peers:
                self.peer_costs_ns.setdefault(peer.name, {}).setdefault(size, []).extend(
                    peer.measure_costs_ns(size, _choose_repetitions(size))
                )
        for _ in range(_choose_repetitions(0)):
            self.round_trip.send(TransferKind.PIPE, self._multi_buffer_item)
            self.round_trip.send(TransferKind.COPIED, self._multi_buffer_item)
        self.round_trip.drain()

    def _measure_hop(self, nbytes: int, *, with_cold: bool) -> None:
        round_trip, item = self.round_trip, self._items[nbytes]
        for _ in range(_choose_repetitions(nbytes)):
            round_trip.send(TransferKind.PIPE, item)
            round_trip.send(TransferKind.COPIED, item)
            round_trip.send_loaned(nbytes)
            if nbytes > _LARGE_MESSAGE_BYTES:
                round_trip.drain()
        if with_cold:
            round_trip.send_cold(nbytes, item)
        round_trip.drain()


def make_hop_points(
    outbound: Sequence[CostMeasurement],
    returned: Sequence[CostMeasurement],
    sizes_bytes: Sequence[int],
    serialization_ns: int,
) -> dict[str, tuple[CostPoint, ...]]:
    """The costs of each mechanism of a hop by size, with `serialization_ns` added.

    The measurements of a mechanism, sorted by size, belong to `sizes_bytes` in the same order.
    """
    measurements = {
        "pipe": select_single_buffer(outbound, TransferKind.PIPE),
        "copied": select_single_buffer(outbound, TransferKind.COPIED),
        "loaned": select_single_buffer(outbound, TransferKind.ZERO_COPY),
        "passed on": select_single_buffer(returned, TransferKind.ZERO_COPY),
        COLD: select_single_buffer(outbound, TransferKind.COLD_COPY),
    }
    return {
        name: tuple(
            CostPoint(
                nbytes=size,
                count=measurement.count,
                low_ns=measurement.low_ns + serialization_ns,
                ns=measurement.cost_ns + serialization_ns,
                high_ns=measurement.high_ns + serialization_ns,
            )
            for size, measurement in zip(sizes_bytes, measurements[name], strict=True)
        )
        for name in HOP_MECHANISMS
    }


def make_peer_points(costs_ns_by_size: Mapping[int, Sequence[int]]) -> tuple[CostPoint, ...]:
    """The medians and quartiles of a peer's costs in ns, sorted by size.

    >>> make_peer_points({64: [1, 2, 3, 4, 5]})
    (CostPoint(nbytes=64, count=5, low_ns=2, ns=3, high_ns=4),)
    """
    points = []
    for size, costs_ns in sorted(costs_ns_by_size.items()):
        low_ns, ns, high_ns = (int(np.quantile(costs_ns, quantile)) for quantile in (0.25, 0.5, 0.75))
        points.append(CostPoint(nbytes=size, count=len(costs_ns), low_ns=low_ns, ns=ns, high_ns=high_ns))
    return tuple(points)
