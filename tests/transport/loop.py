"""Hops on real pipes and memfds, both ends in this process: what the tests of the transport stand on."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import numpy as np

from stagepipe.timing import WORDS, Recorder
from stagepipe.transport import (
    Arena,
    Bell,
    Memory,
    PipeEnds,
    Policy,
    Receiver,
    Sender,
    make_arena,
    make_byte_pipe,
    make_pipe,
    make_socket_pair,
)

NEVER = 1 << 62
LIMIT = 256 << 20
LARGE = 100_000
"""Elements of an array that goes to shared memory."""

WAYS = {
    "auto": (Policy(2048), make_pipe),
    "pipe": (Policy(NEVER), make_pipe),
    "shared memory": (Policy(1, force_shared=True), make_pipe),
    "all through the pipe": (Policy(NEVER, large_in_pipe=True), make_pipe),
    "auto on a socket": (Policy(2048), make_socket_pair),
    "all through a socket": (Policy(NEVER, large_in_pipe=True), make_socket_pair),
}


class Processes:
    """The shared memory of some processes, each of which sees all arenas; the last has none of its own."""

    def __init__(self, count: int = 2, limit: int = LIMIT) -> None:
        self.stack = contextlib.ExitStack()
        self.arenas = {number: make_arena(limit) for number in range(count - 1)}
        self.returns = {number: make_byte_pipe() for number in self.arenas}
        for fd in (*self.arenas.values(), *(fd for ends in self.returns.values() for fd in ends)):
            self.stack.callback(os.close, fd)
        self.memories = [self._memory(number, limit) for number in range(count)]

    def _memory(self, number: int, limit: int) -> Memory:
        fds = {owner: read if owner == number else write for owner, (read, write) in self.returns.items()}
        arena = Arena(number, self.arenas[number], limit) if number in self.arenas else None
        return Memory(arena, dict(self.arenas), fds, writable=arena is None)

    def settle(self) -> int:
        """Everybody says what he does not need any more: the bytes that are live after that."""
        for memory in self.memories:
            memory.flush()
        for memory in self.memories:
            memory.collect()
        return sum(memory.arena.allocator.live for memory in self.memories if memory.arena is not None)


class Hop:
    """A sender in `before`'s process and a receiver in `after`'s."""

    def __init__(self, before: Memory, after: Memory, policy: Policy, pipe: PipeEnds, **reading: bool) -> None:
        self.pipe, self.policy = pipe, policy
        self.bell = Bell()
        self.stopped = False
        self.send_words, self.receive_words = (np.zeros(4 * WORDS, np.uint64) for _ in range(2))
        self.send_rows, self.receive_rows = Recorder(self.send_words, 4), Recorder(self.receive_words, 4)
        self.sender = Sender(pipe.write_fd, before, policy, self.bell, lambda: self.stopped, self.send_rows)
        self.receiver = Receiver(pipe.read_fd, after, self.bell, lambda: self.stopped, self.receive_rows, **reading)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()
        self.bell.close()
        self.pipe.close()

    def send(self, item: Any, generation: int = 1, key: tuple[int, ...] = (0,)) -> bool:
        """Send `item`, which the caller may hold."""
        return self.sender.send([item], generation, key, 1, b"")

    def send_from(self, box: list[Any], generation: int = 1, key: tuple[int, ...] = (0,)) -> bool:
        """Send what nobody holds but the box."""
        return self.sender.send(box, generation, key, 1, b"")

    def receive(self, generation: int = 1, timeout_s: float = 10) -> Any:
        """The next item's value."""
        received = self.receiver.receive(generation, timeout_s)
        assert received is not None
        return received.value

    def carry(self, item: Any) -> Any:
        """`item` as it arrives. What is forced through a pipe needs both sides at work."""
        if not self.policy.large_in_pipe:
            assert self.send(item)
            return self.receive()
        thread = threading.Thread(target=self.send, args=(item,))
        thread.start()
        try:
            return self.receive()
        finally:
            thread.join(10)


class Loop(Processes):
    """One hop between a process with an arena and one without."""

    def __init__(self, policy: Policy, make: Any = make_pipe, **reading: bool) -> None:
        super().__init__(2)
        self.before, self.after = self.memories
        self.hop = Hop(self.before, self.after, policy, make(64), **reading)
        self.stack.callback(self.hop.close)


class Line(Processes):
    """Two hops: a source, a stage in the middle, and a consumer. `first` and `second` are the hops."""

    def __init__(self, policy: Policy, **reading: bool) -> None:
        super().__init__(3)
        source, middle, consumer = self.memories
        self.first = Hop(source, middle, policy, make_pipe(64))
        self.second = Hop(middle, consumer, policy, make_pipe(64), **(reading or {"readonly": False}))
        for hop in (self.first, self.second):
            self.stack.callback(hop.close)


def address(array: Any) -> int:
    """Where the first byte of an array or a tensor lies."""
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data_ptr()


def lies_in(array: Any, memory: Memory, arena: int) -> bool:
    """Whether it lies in an arena as that process has it mapped."""
    return address(array) in memory._mappings[arena]


def loaned(memory: Memory, shape: tuple[int, ...] = (LARGE,), dtype: Any = np.uint8) -> np.ndarray:
    """What `stagepipe.empty` gives a stage."""
    return np.ndarray(shape, dtype, memory.loan(int(np.prod(shape)) * np.dtype(dtype).itemsize))


def loaned_tensor(memory: Memory, shape: tuple[int, ...]) -> Any:
    """The same as a float32 tensor."""
    import torch  # not by those who look at what is imported

    nbytes = int(np.prod(shape)) * 4
    return torch.frombuffer(memory.loan(nbytes), dtype=torch.float32).reshape(shape)
