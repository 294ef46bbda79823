"""Leases: who still needs a block. One `Memory` a process.

A reader holds a block as long as any array or tensor over it lives. What it holds is a `Lease`, an ndarray subclass made
over the mapping itself: NumPy collapses chains of plain views, but not across it, so it dies with the last of them
(`weakref.finalize` on a slice fires early). Its `__del__` may run at any moment and only appends to a deque; the next
send, receive or idle tick tells the owners, on a byte pipe of 16-byte records that no write tears.
"""

from __future__ import annotations

import os
import struct
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from stagepipe.core import ArenaFullError, TransportError
from stagepipe.transport.arena import Arena, Mapping

_RECORD = struct.Struct("<QiI")
_RECORDS_A_WRITE = 4096 // _RECORD.size
_MARK = 0x5EA5E
_READ = 64 << 10
_FLUSH_COUNT = 4
"""Releases that are worth a system call: few, because a block that comes back soon is still in the owner's cache."""

Token = tuple[int, int]
"""(arena, block): what a lease is on."""


class Lease(np.ndarray[Any, Any]):
    """uint8 view of a block's used bytes. While it lives, the block is not used again. Slices of it have no token."""

    token: Token | None = None
    gone: deque[Token] | None = None
    shared: bool = False
    start: int = 0

    def __del__(self) -> None:
        """Say that nobody here needs the block; runs at any moment, so it only appends."""
        if self.token is not None and self.gone is not None:
            self.gone.append(self.token)


class Memory:
    """All the shared memory that a process sees: its own arena (or none) and, on demand, those of the others."""

    def __init__(
        self, arena: Arena | None, arena_fds: dict[int, int], return_fds: dict[int, int], *, writable: bool = False
    ) -> None:
        """`arena_fds` and `return_fds` by arena number: the memfds, and the write (own arena: read) end of its records.

        `writable` maps the others' arenas for writing: the training loop's side.
        """
        self.arena = arena
        self.gone: deque[Token] = deque()
        self._arena_fds, self._return_fds, self._writable = arena_fds, return_fds, writable
        self._mappings: dict[int, Mapping] = {} if arena is None else {arena.number: arena.mapping}
        self._unsent: deque[bytes] = deque()
        self._live: dict[Token, weakref.ref[Lease]] = {}
        self.leased = 0
        self.publish_live: Callable[[int], None] = _nobody
        """Told how many bytes are live in one's own arena whenever that changes."""

    # ------------------------------------------------------------------ blocks of one's own

    def take(self, nbytes: int) -> int:
        """A block of one's own arena, not leased by anybody yet. ArenaFullError beyond the limit."""
        allocator = self._own().allocator
        try:
            if not allocator.has_free(nbytes):
                self.collect()
            block = allocator.take(nbytes)
        except ArenaFullError:
            self.flush()
            self.collect()
            block = allocator.take(nbytes)
        self.publish_live(allocator.live)
        return block

    def give(self, block: int) -> None:
        """A block of one's own that was taken and is not needed."""
        self._own().allocator.add(block, -1)

    def loan(self, nbytes: int) -> Lease:
        """A new block of one's own as a writable lease; when it dies unsent the block is free again."""
        arena = self._own()
        self.flush_if_many()
        return self._lease(arena.mapping, self.take(nbytes), nbytes)

    def collect(self) -> None:
        """Read the records that readers sent to one's own arena."""
        if self.arena is None:
            return
        fd, add = self._return_fds[self.arena.number], self.arena.allocator.add
        while True:
            try:
                data = os.read(fd, _READ)
            except BlockingIOError:
                break
            for block, change, mark in _RECORD.iter_unpack(data):
                if mark != _MARK:
                    message = "a record of a released block does not pass its check"
                    raise TransportError(message)
                add(block, change)
            if len(data) < _READ:
                break
        self.publish_live(self.arena.allocator.live)

    def _own(self) -> Arena:
        if self.arena is None:
            message = "this process has no arena of its own"
            raise TransportError(message)
        return self.arena

    # ------------------------------------------------------------------ blocks of anybody

    def lease(self, arena: int, block: int, nbytes: int, *, shared: bool) -> Lease:
        """The lease that came with a packet, as uint8 of shape (nbytes,)."""
        mapping = self._mappings.get(arena)
        if mapping is None:
            mapping = self._mappings[arena] = Mapping(arena, self._arena_fds[arena], writable=self._writable)
        if block + nbytes > mapping.size:
            message = f"a descriptor points {block + nbytes - mapping.size} bytes past its arena"
            raise TransportError(message)
        lease = self._lease(mapping, block, nbytes)
        lease.shared = shared
        return lease

    def _lease(self, mapping: Mapping, block: int, nbytes: int) -> Lease:
        lease: Lease = np.ndarray.__new__(Lease, (nbytes,), np.uint8, mapping.buffer, block)
        lease.token, lease.gone, lease.start = (mapping.number, block), self.gone, mapping.address + block
        self._live[lease.token] = weakref.ref(lease)
        self.leased += 1
        return lease

    def find(self, address: int) -> Lease | None:
        """The lease in whose block `address` lies: for tensors, which do not name what they are over."""
        for mapping in self._mappings.values():
            if address in mapping:
                offset = address - mapping.address
                for (arena, block), reference in self._live.items():
                    if arena == mapping.number and block <= offset:
                        lease = reference()
                        if lease is not None and offset < block + lease.size and lease.token is not None:
                            return lease
        return None

    def pass_on(self, lease: Lease) -> bool:
        """Make a lease ready to be described to another process; False if the bytes must be copied.

        A lease that nobody here holds but the caller is handed over as it is. One that a stage still holds gets a
        second reference at its owner; a loan that the stage still holds is copied, so that it may be written again.
        The caller keeps it in one container and passes it on from there.
        """
        token = lease.token
        if token is None:
            return False
        if sys.getrefcount(lease) <= _HANDED_OVER:
            lease.token = None
            self.leased -= 1
            return True
        if self.arena is not None and token[0] == self.arena.number:
            return False
        self.flush()
        if self._unsent or not self._write(token[0], _RECORD.pack(token[1], 1, _MARK)):
            return False
        lease.shared = True
        return True

    # ------------------------------------------------------------------ giving back

    def refuse(self, arena: int, block: int) -> None:
        """Give back a block of a packet that is not wanted."""
        self.leased += 1
        self.gone.append((arena, block))

    def flush_if_many(self) -> None:
        """Tell the owners when it is worth a system call."""
        if len(self.gone) >= _FLUSH_COUNT:
            self.flush()

    def flush(self) -> None:
        """Tell the owners which blocks nobody here needs any more. Never waits: what does not go now goes later."""
        counts: Counter[Token] = Counter()
        while self.gone:
            token = self.gone.popleft()
            counts[token] += 1
            self._live.pop(token, None)
        self.leased -= counts.total()
        records: dict[int, list[bytes]] = {}
        own = -1 if self.arena is None else self.arena.number
        for (arena, block), count in counts.items():
            if arena == own and self.arena is not None:
                self.arena.allocator.add(block, -count)
            else:
                records.setdefault(arena, []).append(_RECORD.pack(block, -count, _MARK))
        while self._unsent:
            if not self._write(int.from_bytes(self._unsent[0][:2], "little"), self._unsent[0][2:]):
                break
            self._unsent.popleft()
        for arena, packed in records.items():
            for at in range(0, len(packed), _RECORDS_A_WRITE):
                data = b"".join(packed[at : at + _RECORDS_A_WRITE])
                if self._unsent or not self._write(arena, data):
                    self._unsent.append(arena.to_bytes(2, "little") + data)

    def _write(self, arena: int, data: bytes) -> bool:
        try:
            os.write(self._return_fds[arena], data)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True  # the owner is gone, and its arena with it
        return True


def _nobody(_: int) -> None:
    """Nobody wants to know."""


def _handed_over() -> int:
    """What `sys.getrefcount` says in `pass_on` of a lease that only the caller's container holds."""

    class Probe(Memory):
        seen = 0

        def pass_on(self, lease: Lease) -> bool:
            self.seen = sys.getrefcount(lease)
            return True

    probe = Probe(None, {}, {})
    held = [np.ndarray.__new__(Lease, (1,), np.uint8)]
    probe.pass_on(held[0])
    return probe.seen


_HANDED_OVER = _handed_over()
