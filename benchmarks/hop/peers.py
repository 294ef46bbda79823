"""The peers behind one interface, and the rounds of all contestants. It runs in the receiver's process.

`receive` returns the next item; `close` ends the producer and removes all its resources.

Producers run forever, each in its own process. They are forked from a server that has no threads and holds no
descriptors of other peers. They stop on SIGTERM and send None as their last message.

faster-fifo is a pickling queue with a lock and no thread. iceoryx2's producer fills a loan, and the receiver gets it in
place, without a pickle: 8 bytes of number and the image, whose type the receiver knows. Its sides wait without polling:
the receiver for an event, the producer for a semaphore that counts free samples.

In the rounds, the contestants of a size take bursts in turn: items received one after another in the steady state, and
the cost of each.
"""

from __future__ import annotations

import ctypes
import importlib.util
import multiprocessing
import queue
import secrets
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from benchmarks.common.turn import CpuClocks, Placement, end_process, list_descendant_pids, list_tracker_pids, order
from benchmarks.hop import CONFIGS, HEADER_ONLY, Image, Item, PipelinePeer, check, make_image, make_item, spoiled, touch

_IN_FLIGHT_BYTES = 16 << 20
_PIPE_BYTES = 64 << 10  # pipe(7)


class Peer(Protocol):
    """A contestant. If `filled`, the whole image equals the prepared one and can be checked."""

    name: str
    filled: bool
    max_backlog: int
    """Maximum number of items that can pile up between two bursts; they are taken before the next burst is timed."""
    receive: Callable[[], Item]

    def close(self) -> None:
        """End the producer."""


def max_in_flight(nbytes: int) -> int:
    """Return the maximum number of items in flight for a mechanism without its own bound: 16 MiB of items, 4 to 256.

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
    """torch's DataLoader with one worker over an IterableDataset, `batch_size=None`, and defaults otherwise.

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
        """End the worker, which otherwise ends only with the iterator."""
        del self.receive
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        self._iterator = iter(())


REUSED_SLOTS = 16
"""The number of large items that a pipeline has in flight."""


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
        # A separate name: tests look for segments with the usual one, and this segment stays for a whole run.
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
        """End the producer, and unlink the segment; items in flight are dropped."""
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

    If `lists`, the receiver takes the available items, at most 100, as its documentation shows.
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
        """End the producer; items in flight are dropped."""
        self._process.terminate()
        self._join_producer()


_HEADER_BYTES = 64
"""The item's number, padded to where the image may start."""


class _Services:
    """The service of the samples and the service of the events, in a separate namespace."""

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
        """End the producer; items in flight are dropped."""
        self._process.terminate()
        self._free_slots.release()
        self._join_producer()
        if self._held is not None:
            self._held.delete()
        del self._subscriber, self._listener, self._services
        shared_memory = Path("/dev/shm")  # noqa: S108 - iceoryx2 leaves a segment there
        for left in shared_memory.glob(f"{Path(self._folder.name).name}*"):
            left.unlink(missing_ok=True)
        self._folder.cleanup()


_CHUNKS = 8
"""Approximate number of clock readings in a burst."""
_MIN_ITEMS = 2


@dataclass(frozen=True)
class Burst:
    """The microseconds per item at the receiver, and the processor time per item of both sides together."""

    items: int
    us: float
    cpu_us: float


def burst(
    receive: Callable[[], Item],
    touch: Callable[[Item], None] | None,
    clocks: CpuClocks,
    *,
    warm_up: int,
    budget_s: float,
) -> Burst:
    """Take `warm_up` items unmeasured, then measure items for `budget_s` seconds, at least two."""
    warm_up_begin = perf_counter_ns()
    first = last = _take(receive, touch, max(warm_up, 1))
    item_ns = (perf_counter_ns() - warm_up_begin) / max(warm_up, 1)
    chunk = max(1, int(budget_s * 1e9 / _CHUNKS / max(item_ns, 100)))
    cpu_before_ns, begin, items = clocks.read_ns(), perf_counter_ns(), 0
    while True:
        last = _take(receive, touch, chunk)
        items += chunk
        now = perf_counter_ns()
        if now - begin >= budget_s * 1e9 and items >= _MIN_ITEMS:
            break
    cpu_ns = clocks.read_ns() - cpu_before_ns
    assert last - first == items, f"took {items} items after item {first}, but the last one is item {last}"
    return Burst(items, (now - begin) / items / 1000, cpu_ns / items / 1000)


def _take(receive: Callable[[], Item], touch: Callable[[Item], None] | None, count: int) -> int:
    """Take `count` items and return the number of the last. Each is released before the next is requested."""
    if touch is None:
        for _ in range(count - 1):
            receive()
        item = receive()
    else:
        for _ in range(count - 1):
            touch(receive())
        item = receive()
        touch(item)
    return int(item["id"])


CONTESTANTS: dict[str, Callable[[int], Peer]] = {
    **{name: partial(PipelinePeer, name) for name in CONFIGS if name != HEADER_ONLY},
    "memcpy": partial(MemcpyPeer, buffers=16),
    "memcpy to one": partial(MemcpyPeer, buffers=1),
    "Pipe": PipePeer,
    "Queue": QueuePeer,
    "faster-fifo": FasterFifoPeer,
    "faster-fifo lists": partial(FasterFifoPeer, lists=True),
    "SharedMemory": SegmentPeer,
    "SharedMemory reused": ReusedSegmentPeer,
    "iceoryx2": IceoryxPeer,
    "DataLoader NumPy": partial(LoaderPeer, tensors=False),
    "DataLoader torch": partial(LoaderPeer, tensors=True),
    HEADER_ONLY: partial(PipelinePeer, HEADER_ONLY),
}
_NEEDED = {"faster-fifo": "faster_fifo", "faster-fifo lists": "faster_fifo", "iceoryx2": "iceoryx2"}
MISSING = {name for name, package in _NEEDED.items() if importlib.util.find_spec(package) is None}
"""Contestants whose package is not installed: the table leaves them out and names them."""
BASE = "stagepipe copied"
"""The contestant that the others are compared with."""
_HUGE_BYTES = 32 << 20
_MAX_HUGE_ROUNDS = 6
"""Maximum number of rounds for sizes at which an item can take a quarter of a second: enough for a 95 % interval."""
_CHECKED_ITEMS = 4


@dataclass
class Row:
    """A contestant at a size, with a value for each round. If `touched`, the receiver reads every byte."""

    contestant: str
    size: str
    nbytes: int
    touched: bool
    us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    items: int = 0


@dataclass(frozen=True)
class Settings:
    """The number of rounds, the seconds of a burst, and the contestant whose items are corrupted on purpose."""

    rounds: int
    budget_s: float
    corrupt: str = ""


@dataclass(frozen=True)
class _RunningPeer:
    peer: Peer
    clocks: CpuClocks


@contextmanager
def _start_all(names: list[str], nbytes: int, placement: Placement) -> Iterator[dict[str, _RunningPeer]]:
    started: dict[str, _RunningPeer] = {}
    with ExitStack() as stack:  # closes every peer, even if closing another one raises
        for name in names:
            before = list_descendant_pids()
            with placement.on_other_cpus():
                peer = CONTESTANTS[name](nbytes)
            stack.callback(peer.close)
            pids = (list_descendant_pids() - before) | list_tracker_pids()
            started[name] = _RunningPeer(peer, CpuClocks(pids))
        yield started


def _verify(peer: Peer, image: Image, skip: int, corrupt: str) -> None:
    """Take `skip` items, and check the items before and after them. `corrupt` names the contestant to corrupt first."""
    receive = spoiled(peer.receive) if peer.name == corrupt else peer.receive
    try:
        item = receive()
        first = int(item["id"])
        for number in range(first, first + _CHECKED_ITEMS):
            check(item, image, number, filled=peer.filled)
            del item
            item = receive()
        del item
        for _ in range(skip):
            peer.receive()
        check(receive(), image, first + _CHECKED_ITEMS + skip + 1, filled=peer.filled)
    except AssertionError as error:
        raise SystemExit(f"{peer.name}, {image.size} bytes: {error}") from error


def measure(
    size: str, nbytes: int, names: list[str], settings: Settings, placement: Placement
) -> tuple[list[Row], dict[str, Any]]:
    """Measure one size: its rows, and a summary of stagepipe's own reports, by contestant."""
    rows = {(name, touched): Row(name, size, nbytes, touched) for name in names for touched in (False, True)}
    image = make_image(nbytes)
    with _start_all(names, nbytes, placement) as started:
        for running in started.values():
            _verify(running.peer, image, 2 * running.peer.max_backlog, settings.corrupt)
        for round_number in range(min(settings.rounds, _MAX_HUGE_ROUNDS) if nbytes >= _HUGE_BYTES else settings.rounds):
            for name in order(names, round_number):
                running = started[name]
                for touched in (False, True) if round_number % 2 else (True, False):
                    _time_burst(running, rows[name, touched], settings.budget_s)
        for running in started.values():
            _verify(running.peer, image, 0, settings.corrupt)
        peers = [running.peer for running in started.values()]
    reports = {peer.name: _summarize(peer) for peer in peers if isinstance(peer, PipelinePeer)}
    return list(rows.values()), reports


def _time_burst(running: _RunningPeer, row: Row, budget_s: float) -> None:
    measured = burst(
        running.peer.receive,
        touch if row.touched else None,
        running.clocks,
        warm_up=running.peer.max_backlog,
        budget_s=budget_s,
    )
    row.us.append(measured.us)
    row.cpu_us.append(measured.cpu_us)
    row.items += measured.items


def _summarize(peer: PipelinePeer) -> dict[str, Any]:
    return {"hops": peer.hops, "timing_ns_per_hop": peer.timing_ns_per_hop}
