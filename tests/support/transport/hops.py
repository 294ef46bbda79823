"""Hops over real pipes and memfds, with both ends in this process, for the tests of the transport."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import numpy as np

from stagepipe.timing import HISTOGRAM_WORDS, LEDGER_WORDS, CostLedger, DurationRecorder
from stagepipe.transport import (
    ALWAYS_PIPE_THRESHOLD_BYTES,
    Arena,
    PipeEnds,
    Receiver,
    Sender,
    SharedMemoryPool,
    Transport,
    TransportRule,
    WakeEvent,
    make_arena_fd,
    make_byte_pipe,
    make_packet_pipe,
)
from stagepipe.transport.pipe import make_socket_pair

LIMIT_BYTES = 256 << 20
LARGE = 100_000
"""The elements of an array that is large enough for shared memory."""

TRANSFER_SETUPS = {
    "auto": (TransportRule(threshold_bytes=2048), make_packet_pipe),
    "pipe": (TransportRule(threshold_bytes=ALWAYS_PIPE_THRESHOLD_BYTES), make_packet_pipe),
    "shared memory": (TransportRule(threshold_bytes=1, mode="shared_memory"), make_packet_pipe),
    "all through the pipe": (
        TransportRule(threshold_bytes=ALWAYS_PIPE_THRESHOLD_BYTES, large_in_pipe=True),
        make_packet_pipe,
    ),
    "auto on a socket": (TransportRule(threshold_bytes=2048), make_socket_pair),
    "all through a socket": (
        TransportRule(threshold_bytes=ALWAYS_PIPE_THRESHOLD_BYTES, large_in_pipe=True),
        make_socket_pair,
    ),
}


class Processes:
    """The shared memory pools of several processes. Each knows all arenas; the last has no arena of its own."""

    def __init__(
        self, count: int = 2, limit_bytes: int = LIMIT_BYTES, transports: dict[int, Transport] | None = None
    ) -> None:
        self.stack = contextlib.ExitStack()
        self.arena_fds = {number: make_arena_fd(limit_bytes) for number in range(count - 1)}
        self.release_pipes = {number: make_byte_pipe() for number in self.arena_fds}
        for fd in (*self.arena_fds.values(), *(fd for ends in self.release_pipes.values() for fd in ends)):
            self.stack.callback(os.close, fd)
        self.pools = [self._make_pool(number, limit_bytes) for number in range(count)]
        for pool in self.pools:
            pool.attach_transports(transports or {})

    def _make_pool(self, number: int, limit_bytes: int) -> SharedMemoryPool:
        release_fds = {owner: read if owner == number else write for owner, (read, write) in self.release_pipes.items()}
        arena = Arena(number, self.arena_fds[number], limit_bytes) if number in self.arena_fds else None
        return SharedMemoryPool(arena, dict(self.arena_fds), release_fds, writable=arena is None)

    def settle(self) -> int:
        """Send and collect all releases. Returns the bytes that are still in use."""
        for pool in self.pools:
            pool.flush_releases()
        for pool in self.pools:
            pool.collect_releases()
        return sum(pool.arena.allocator.live_bytes for pool in self.pools if pool.arena is not None)


class Hop:
    """A sender on `sender_pool` and a receiver on `receiver_pool`, with their recorders."""

    def __init__(
        self,
        sender_pool: SharedMemoryPool,
        receiver_pool: SharedMemoryPool,
        rule: TransportRule,
        pipe: PipeEnds,
        **receiver_options: bool,
    ) -> None:
        self.pipe = pipe
        self.rule = rule
        self.wake_event = WakeEvent()
        self.is_interrupted = False
        self.send_words = np.zeros(5 * HISTOGRAM_WORDS, np.uint64)
        self.receive_words = np.zeros(4 * HISTOGRAM_WORDS, np.uint64)
        self.ledgers = [CostLedger(np.zeros(LEDGER_WORDS, np.uint64)) for _ in range(2)]
        self.send_recorder = DurationRecorder(self.send_words, 5, self.ledgers[0])
        self.receive_recorder = DurationRecorder(self.receive_words, 4, self.ledgers[1])
        self.sender = Sender(
            pipe.write_fd, sender_pool, rule, self.wake_event, lambda: self.is_interrupted, self.send_recorder
        )
        self.receiver = Receiver(
            pipe.read_fd,
            receiver_pool,
            self.wake_event,
            lambda: self.is_interrupted,
            self.receive_recorder,
            **receiver_options,
        )

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        self.wake_event.close()
        self.pipe.close()

    def send(self, item: Any, generation: int = 1, key: tuple[int, ...] = (0,)) -> bool:
        """Send `item`; the caller may hold a reference to it."""
        if generation != self.sender._generation:
            self.sender.start_generation(generation)
        is_held = self.sender.add(item, key)
        if is_held is not False:
            return bool(is_held)
        return self.sender.send([item], generation, key, 1, b"")

    def send_from(self, item_box: list[Any], generation: int = 1, key: tuple[int, ...] = (0,)) -> bool:
        """Send the item in a box that has the only reference to it."""
        return self.sender.send(item_box, generation, key, 1, b"")

    def receive(self, generation: int = 1, timeout_s: float = 10) -> Any:
        """The value of the next item."""
        received = self.receiver.receive_one(generation, timeout_s)
        assert received is not None
        return received.value

    def transfer(self, item: Any) -> Any:
        """Send `item` and receive it. Fragments need both sides at work, so they are sent from a thread."""
        if not self.rule.large_in_pipe:
            assert self.send(item)
            return self.receive()
        thread = threading.Thread(target=self.send, args=(item,))
        thread.start()
        try:
            return self.receive()
        finally:
            thread.join(10)


class LoopbackHop(Processes):
    """One hop from a process with an arena to one without."""

    def __init__(
        self,
        rule: TransportRule,
        make_pipe: Any = make_packet_pipe,
        transports: dict[int, Transport] | None = None,
        **receiver_options: bool,
    ) -> None:
        super().__init__(2, transports=transports)
        self.sender_pool, self.receiver_pool = self.pools
        self.hop = Hop(self.sender_pool, self.receiver_pool, rule, make_pipe(64), **receiver_options)
        self.stack.callback(self.hop.close)


class TwoHops(Processes):
    """Two hops, `first` and `second`: from a source to a stage, and from there to a consumer."""

    def __init__(
        self, rule: TransportRule, transports: dict[int, Transport] | None = None, **receiver_options: bool
    ) -> None:
        super().__init__(3, transports=transports)
        source, middle, consumer = self.pools
        self.first = Hop(source, middle, rule, make_packet_pipe(64))
        self.second = Hop(middle, consumer, rule, make_packet_pipe(64), **(receiver_options or {"readonly": False}))
        for hop in (self.first, self.second):
            self.stack.callback(hop.close)


def address(array: Any) -> int:
    """The address of the first byte of an array or a tensor."""
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data_ptr()


def is_in_arena(array: Any, pool: SharedMemoryPool, arena: int) -> bool:
    """Whether an array or a tensor is in an arena as `pool` has it mapped."""
    return address(array) in pool._mappings[arena]


def loaned_array(pool: SharedMemoryPool, shape: tuple[int, ...] = (LARGE,), dtype: Any = np.uint8) -> np.ndarray:
    """An array as `stagepipe.empty` returns it to a stage."""
    return np.ndarray(shape, dtype, pool.loan(int(np.prod(shape)) * np.dtype(dtype).itemsize))


def loaned_tensor(pool: SharedMemoryPool, shape: tuple[int, ...]) -> Any:
    """A float32 tensor as `stagepipe.empty` returns it to a stage."""
    import torch  # imported here, because some tests check that torch is not imported

    nbytes = int(np.prod(shape)) * 4
    return torch.frombuffer(pool.loan(nbytes), dtype=torch.float32).reshape(shape)
