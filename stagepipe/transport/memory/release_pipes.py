"""Release records: they tell the owner of a block that references to it have gone, or that one was added.

A record has 16 bytes and travels through a byte pipe, which each arena has; each write is small enough to be atomic.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

from stagepipe.core import TransportError
from stagepipe.transport.transports import TICKET_BASE, Transport

_RELEASE_STRUCT = struct.Struct("<QiI")
_MAX_RELEASES_PER_WRITE = 4096 // _RELEASE_STRUCT.size  # one atomic write: PIPE_BUF, see pipe(7)
_CHECKSUM_SEED = 0x5EA5E  # arbitrary, so that a record of zeros fails
_CHECKSUM_PRIME = (1 << 32) - 5  # the largest prime below 2**32
_READ_BYTES = 64 << 10  # the default capacity of a pipe, pipe(7)


class ReleasePipes:
    """The release pipes of all arenas, by arena number: the read end for this process's own arena, else the write end.

    Releases are collected by block. A full pipe never blocks: what it rejects is sent later.
    """

    def __init__(self, fds: dict[int, int]) -> None:
        """`fds` are the non-blocking ends, by arena number."""
        self._fds = fds
        self._unsent_counts: dict[int, dict[int, int]] = {}
        self.transports: dict[int, Transport] = {}
        """By arena number: their buffers are released without a pipe."""
        self._released_elsewhere = 0

    def require(self, arena: int) -> None:
        """Raise TransportError for an arena that this process does not know."""
        if arena not in self._fds and arena not in self.transports:
            raise TransportError(f"a descriptor names arena {arena}; this process knows {sorted(self._fds)}")

    def add_release(self, arena: int, block: int) -> None:
        """Add a release to those that `send_releases` sends."""
        counts = self._unsent_counts.get(arena)
        if counts is None:
            if arena in self.transports:
                self.transports[arena].release(block - TICKET_BASE)
                self._released_elsewhere += 1
                return
            counts = self._unsent_counts[arena] = {}
        counts[block] = counts.get(block, 0) + 1

    def send_releases(self) -> int:
        """Send the collected releases to the owners of their blocks. Returns how many were sent."""
        released, self._released_elsewhere = self._released_elsewhere, 0
        return released + sum([self._send_to(arena, counts) for arena, counts in self._unsent_counts.items() if counts])

    def discard_releases(self) -> int:
        """Forget the releases that are not sent yet. Returns how many."""
        count = sum(sum(counts.values()) for counts in self._unsent_counts.values())
        self._unsent_counts.clear()
        return count

    def _send_to(self, arena: int, unsent_counts: dict[int, int]) -> int:
        """Send the releases for one arena. What its pipe does not take stays, added up, for the next call."""
        sent = 0
        while unsent_counts:
            batch = list(unsent_counts.items())[:_MAX_RELEASES_PER_WRITE]
            if not self._write(arena, b"".join([_pack_release(block, -count) for block, count in batch])):
                break
            for block, count in batch:
                del unsent_counts[block]
                sent += count
        return sent

    def add_reference(self, arena: int, block: int) -> bool:
        """Tell the owner of a block, at once, that it has one more reference; False if the pipe is full."""
        if arena in self.transports:
            return self.transports[arena].hand_on(block - TICKET_BASE)
        return self._write(arena, _pack_release(block, 1))

    def _write(self, arena: int, data: bytes) -> bool:
        try:
            os.write(self._fds[arena], data)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True  # the owner has ended, and its arena with it
        return True

    def read_records(self, arena: int, add_references: Callable[[int, int], None]) -> None:
        """Call `add_references` with each record for the own arena: a block, and by how much its references change.

        Raises TransportError for a damaged record.
        """
        fd = self._fds[arena]
        while True:
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return
            if len(data) % _RELEASE_STRUCT.size:
                raise TransportError(f"a release record for arena {arena} is truncated")
            for block, delta, checksum in _RELEASE_STRUCT.iter_unpack(data):
                if checksum != _release_checksum(block, delta):
                    raise TransportError(
                        f"a release record for arena {arena} fails its checksum (block {block}, change {delta})"
                    )
                add_references(block, delta)
            if len(data) < _READ_BYTES:
                return


def _pack_release(block: int, delta: int) -> bytes:
    return _RELEASE_STRUCT.pack(block, delta, _release_checksum(block, delta))


def _release_checksum(block: int, delta: int) -> int:
    """A sum modulo a prime, which every single flipped bit changes. `zlib.crc32` takes three times as long here."""
    return (block * 0x9E3779B1 + delta * 0x85EBCA6B + _CHECKSUM_SEED) % _CHECKSUM_PRIME
