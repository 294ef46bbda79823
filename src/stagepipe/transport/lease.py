"""Leases: who still needs a block. One `Memory` a process, used by its main thread.

A reader holds a block as long as any array or tensor over it lives. What it holds is a `Lease`, an ndarray subclass
made over the mapping itself: NumPy collapses chains of plain views, but not across it, so it dies with the last of them
(`weakref.finalize` on a slice fires early). Its `__del__` may run at any moment, in any thread, and only appends to a
deque; the next send, receive or idle tick tells the owners, on a byte pipe of 16-byte records that no write tears.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stagepipe.core import ArenaFullError, TransportError
from stagepipe.transport.arena import Arena, Mapping, class_size, span_of

_RECORD = struct.Struct("<QiI")
_RECORDS_A_WRITE = 4096 // _RECORD.size  # PIPE_BUF, see pipe(7): so many go in one atomic write
_MARK, _PRIME = 0x5EA5E, (1 << 32) - 5
_READ = 64 << 10
_MANY_TWICE = 256
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
        self,
        arena: Arena | None,
        arena_fds: dict[int, int],
        return_fds: dict[int, int],
        *,
        writable: bool = False,
        limit: int | None = None,
    ) -> None:
        """`arena_fds` and `return_fds` by arena number: the memfds, and the write (own arena: read) end of its records.

        `writable` maps the others' arenas for writing: the training loop's side. `limit` is what `make_arena` was told
        of them; without it they have one era only.
        """
        self.arena = arena
        self.gone: deque[Token] = deque()
        self._arena_fds, self._return_fds, self._writable = arena_fds, return_fds, writable
        self._span = None if limit is None else span_of(limit)
        self._era_start = 0 if arena is None else arena.start
        self._mappings: dict[int, Mapping] = {} if arena is None else {arena.number: arena.mapping}
        self._owed: dict[int, dict[int, int]] = {}
        self._live: dict[Token, weakref.ref[Lease]] = {}
        self._twice: list[tuple[Token, weakref.ref[Lease]]] = []
        """Leases on blocks of which another one was made meanwhile."""
        self.leased = 0
        """References that this process holds or has not told the owner yet that it does not: a reason to tick."""
        self.publish_live: Callable[[int], None] = _nobody
        """Told how many bytes are live in one's own arena whenever that changes."""
        self.publish_largest: Callable[[int], None] = _nobody
        """Told the size of the largest block of one's own, in bytes, whenever that grows."""
        self._largest = 0

    # ------------------------------------------------------------------ blocks of one's own

    def take(self, nbytes: int) -> int:
        """A block of one's own arena, not leased by anybody yet. ArenaFullError beyond the limit."""
        allocator, size = self._own().allocator, class_size(nbytes)
        block = allocator.reuse(size)
        if block is None:
            self.collect()
            try:
                block = allocator.take(size)
            except ArenaFullError:
                self.flush()
                block = allocator.take(size)
        self.publish_live(allocator.live)
        if size > self._largest:
            self._largest = size
            self.publish_largest(size)
        return block

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
            if len(data) % _RECORD.size:
                raise TransportError("a record of a released block is cut off")
            for block, change, mark in _RECORD.iter_unpack(data):
                if mark != _check(block, change):
                    raise TransportError("a record of a released block does not pass its check")
                add(block, change)
            if len(data) < _READ:
                break
        self.publish_live(self.arena.allocator.live)

    def _own(self) -> Arena:
        if self.arena is None:
            raise TransportError("this process has no shared memory of its own to send from")
        return self.arena

    # ------------------------------------------------------------------ blocks of anybody

    def lease(self, arena: int, block: int, nbytes: int, *, shared: bool) -> Lease:
        """The lease that came with a packet, as uint8 of shape (nbytes,). TransportError if there is no such place."""
        mapping = self._mappings.get(arena)
        if mapping is None or not mapping.start <= block <= mapping.end - nbytes:
            mapping = self._map(arena, block, nbytes)
        lease = self._lease(mapping, block, nbytes)
        lease.shared = shared
        return lease

    def read(self, arena: int, block: int, start: int, nbytes: int) -> bytes:
        """A copy of bytes of a block that a packet holds. TransportError if there is no such place."""
        mapping = self._mappings.get(arena)
        if mapping is None or not mapping.start <= block <= mapping.end - start - nbytes:
            mapping = self._map(arena, block, start + nbytes)
        at = block - mapping.start + start
        return bytes(mapping.buffer[at : at + nbytes])

    def _map(self, arena: int, block: int, nbytes: int) -> Mapping:
        """The era of an arena in which these bytes lie. TransportError if it has none."""
        fd = self._arena_fds.get(arena)
        if fd is None:
            known = sorted(self._arena_fds)
            raise TransportError(f"a descriptor names arena {arena}; this process knows {known}")
        size = os.fstat(fd).st_size
        span = self._span or size
        start = block // span * span
        if block + nbytes > min(start + span, size):
            raise TransportError(f"a descriptor points {block + nbytes - start - span} bytes past arena {arena}")
        mapping = Mapping(arena, fd, start, span, writable=self._writable)
        if self.arena is None or arena != self.arena.number:  # one's own stays that of the era in force
            self._mappings[arena] = mapping
        return mapping

    def _lease(self, mapping: Mapping, block: int, nbytes: int) -> Lease:
        lease: Lease = np.ndarray.__new__(Lease, (nbytes,), np.uint8, mapping.buffer, block - mapping.start)
        token = (mapping.number, block)
        lease.token, lease.gone, lease.start = token, self.gone, mapping.address + block - mapping.start
        before = self._live.get(token)
        if before is not None and before() is not None:
            self._keep_also(token, before)
        self._live[token] = weakref.ref(lease)
        self.leased += 1
        return lease

    def _keep_also(self, token: Token, lease: weakref.ref[Lease]) -> None:
        if len(self._twice) >= _MANY_TWICE:
            self._twice = [pair for pair in self._twice if pair[1]() is not None]
        self._twice.append((token, lease))

    # ------------------------------------------------------------------ eras

    def begin(self, era: int) -> None:
        """A process has died: from here on blocks are of a new era. Older ones may be read, and are not passed on."""
        if self._span is None:
            raise TransportError("this memory was made for one era")
        self._era_start = era * self._span
        self._mappings.clear()
        self.leased -= sum(sum(blocks.values()) for blocks in self._owed.values())
        self._owed.clear()
        if self.arena is not None:
            self.arena.begin(era)
            self._mappings[self.arena.number] = self.arena.mapping
            self.publish_live(0)

    def is_past(self, descriptors: Sequence[tuple[int, ...]]) -> bool:
        """Whether the first of a packet's descriptors points into an older era."""
        return bool(descriptors) and descriptors[0][3] < self._era_start

    def of_the_past(self) -> list[tuple[int, int, int]]:
        """(arena, block, bytes) of the leases that live here on blocks of older eras, each of which is still needed."""
        start, found = self._era_start, []
        for (arena, block), reference in [*self._live.items(), *self._twice]:
            lease = reference() if block < start else None
            if lease is not None:
                found.append((arena, block, lease.size))
        return found

    def held_bytes(self) -> int:
        """The bytes of all leases that live in this process; costs a look at each."""
        leases = [reference() for reference in list(self._live.values())]
        return sum(lease.size for lease in leases if lease is not None)

    def find(self, address: int, nbytes: int) -> Lease | None:
        """The lease that these bytes lie in: for tensors, which do not name what they are over."""
        for mapping in self._mappings.values():
            if address in mapping:
                return self._find(mapping.number, address - mapping.address + mapping.start, nbytes)
        return None

    def _find(self, number: int, offset: int, nbytes: int) -> Lease | None:
        for (arena, block), reference in self._live.items():
            if arena == number and block <= offset:
                lease = reference()
                if lease is not None and offset + nbytes <= block + lease.size:
                    return lease
        return None

    def pass_on(self, box: list[Lease], token: Token) -> bool | None:
        """A reference to the block of the lease in `box`, for another process; None if its bytes must be copied.

        The answer is whether somebody else may hold one as well. A lease that nobody holds but the box is handed over
        as it is. One that a stage still holds gets a second reference at its owner; a loan that the stage still holds
        is copied, so that it may be written again. What is still held is in the box afterwards.

        To know which it is, the box lets go of the lease: if that was its end, `__del__` has said so. Reference counts
        would tell as much, but what they count differs between Python's versions, and under a debugger.
        """
        if token[1] < self._era_start:
            return None
        lease = box.pop()
        shared, reference = lease.shared, weakref.ref(lease)
        del lease
        held = reference()
        if held is None:
            self.gone.remove(token)
            self._forget(token)
            self.leased -= 1
            return shared
        box.append(held)
        if self.arena is not None and token[0] == self.arena.number:
            return None
        # The owner must know before any other process can give the block back, so it is told now or not at all.
        # Releases that wait may come later: until then it only counts too many.
        if not self._write(token[0], _record(token[1], 1)):
            return None
        held.shared = True
        return True

    # ------------------------------------------------------------------ giving back

    def refuse(self, arena: int, block: int) -> None:
        """Give back a block of a packet that is not wanted, or was not sent."""
        if arena not in self._return_fds:
            raise TransportError(f"a descriptor names arena {arena}; this process knows {sorted(self._return_fds)}")
        if block < self._era_start:
            return
        self.leased += 1
        self.gone.append((arena, block))

    def flush_if_many(self) -> None:
        """Tell the owners when it is worth a system call."""
        if len(self.gone) >= _FLUSH_COUNT:
            self.flush()

    def flush(self) -> None:
        """Tell the owners which blocks nobody here needs any more. Never waits: what does not go now goes later."""
        gone, owed = self.gone, self._owed
        own = None if self.arena is None else self.arena
        mine = False
        while gone:
            token = gone.popleft()
            self._forget(token)
            arena, block = token
            if own is not None and arena == own.number:
                own.allocator.add(block, -1)
                self.leased -= 1
                mine = True
            else:
                blocks = owed.get(arena)
                if blocks is None:
                    blocks = owed[arena] = {}
                blocks[block] = blocks.get(block, 0) + 1
        if own is not None and mine:
            self.publish_live(own.allocator.live)
        for arena, blocks in owed.items():
            if blocks:
                self._pay(arena, blocks)

    def _forget(self, token: Token) -> None:
        """Another lease on the same block, which came in a second packet, is not forgotten."""
        reference = self._live.get(token)
        if reference is not None and reference() is None:
            del self._live[token]

    def _pay(self, arena: int, owed: dict[int, int]) -> None:
        """Send the releases that an owner is owed. What its pipe does not take stays, added up, for the next time."""
        while owed:
            some = list(owed.items())[:_RECORDS_A_WRITE]
            if not self._write(arena, b"".join([_record(block, -count) for block, count in some])):
                return
            for block, count in some:
                del owed[block]
                self.leased -= count

    def _write(self, arena: int, data: bytes) -> bool:
        try:
            os.write(self._return_fds[arena], data)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True  # the owner is gone, and its arena with it
        return True


def _record(block: int, change: int) -> bytes:
    return _RECORD.pack(block, change, _check(block, change))


def _check(block: int, change: int) -> int:
    """Not `zlib.crc32`, which takes three times as long for so little: any one bit changes it, modulo a prime."""
    return (block * 0x9E3779B1 + change * 0x85EBCA6B + _MARK) % _PRIME


def _nobody(_: int) -> None:
    """Nobody wants to know."""
