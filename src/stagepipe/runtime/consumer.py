"""The caller's side of the last hop: an order point whose outputs are the pipeline's. In the caller's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter_ns, sleep
from typing import Any

from stagepipe.core import Cursor, RunError, Skip, TransportError
from stagepipe.plan import SINK
from stagepipe.runtime.fullness import full_error
from stagepipe.runtime.gate import Meter
from stagepipe.runtime.older import Older
from stagepipe.runtime.place import InOrder, Place, place_at
from stagepipe.runtime.supervisor import Supervisor
from stagepipe.timing import RECEIVE_PHASES, Recorder, Word
from stagepipe.transport import (
    Arena,
    Kind,
    Lease,
    Memory,
    Received,
    Receiver,
    Reorder,
)

_FLUSH_NS = 100_000_000
_THIN = 512
_LOOK_EVERY, _MANY = 4, 64
"""To look at what is held takes time for each lease: at many of them it is done every few items."""
_SETTLE_S = 0.15
"""Workers that hold something say how much every tenth of a second."""
_FEW = 4
"""Leases that any caller may hold: the item in hand, and those of the last few that are not given back yet."""


@dataclass(frozen=True)
class Lent:
    """What passes delivered items on needs: the memory that they lie in, its descriptors by arena, and its upkeep.

    `release_fds` are the ends that take the records of released blocks. `tick` is run in every wait.
    """

    memory: Memory
    arena_fds: dict[int, int]
    release_fds: dict[int, int]
    memory_bytes: int
    tick: Callable[[], None]


class Consumer:
    """Delivers items in order. One epoch an iteration; a new one is a seek, also in the middle of an old one."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Read the last hop of the supervisor's run."""
        resources = supervisor.resources
        self._supervisor, self._plan = supervisor, supervisor.plan
        number = resources.sink_number
        self._region = supervisor.board.region(number)
        returns = {owner: ends[1] for owner, ends in resources.returns.items()}
        limit = self._plan.memory_bytes
        self._memory = Memory(None, dict(resources.arenas), returns, writable=True, limit=limit)
        self._rows = Recorder(self._region.receiving, len(RECEIVE_PHASES), self._region.receiving_ledger)
        self._receiver = self._reading()
        self._lent, self._thread = False, -1
        self._stretch = len(self._plan.stretches) - 1
        self._meter = Meter(supervisor.board, self._stretch, resources.bells[self._stretch])
        self._generation = 0
        self._older = self._watched_eras()
        self._through = True  # nothing is under way
        self._mending = False
        self._flushed_ns = 0
        self._place: Place = InOrder(Cursor())
        self._end: int | None = None
        self._meta_of: dict[int, bytes] = {}
        self.items = self.samples = 0
        self.first_item_ns = 0
        self.wait_ns = self.busy_ns = self.first_wait_ns = 0
        self._outside_ns = self._left_ns = 0
        self.delivered: list[tuple[int, int]] = []
        self._every = 1
        self._held_bytes = self._full_at = 0
        self._settled = False
        self.begun_ns = perf_counter_ns()
        self.ended_ns = 0

    def _reading(self) -> Receiver:
        supervisor = self._supervisor
        return Receiver(
            supervisor.resources.pipes[-1].read_fd,
            self._memory,
            supervisor.bell,
            self._interrupted,
            self._rows,
            self._tick,
            readonly=False,
        )

    def _watched_eras(self) -> Older:
        supervisor = self._supervisor
        number = supervisor.resources.sink_number
        return Older(self._memory, 0, lambda era, leases: supervisor.entered(number, era, leases))

    def lend(self) -> Lent:
        """For a caller that sends items on to other processes. Before the first epoch, and once.

        What is delivered may then be passed on by the `Memory` of the thread that iterates, which has an arena for what
        must be copied; and only that thread tells the owners what nobody needs any more.
        """
        resources, limit = self._supervisor.resources, self._plan.memory_bytes
        number = resources.sink_number
        self._supervisor.lend(number)
        arena = Arena(number, resources.arenas[number], limit)
        releases = {owner: ends[1] for owner, ends in resources.returns.items()}
        records = {**releases, number: resources.returns[number][0]}
        self._memory = Memory(arena, dict(resources.arenas), records, writable=True, limit=limit)
        self._memory.publish_live = self._publish_live
        self._older = self._watched_eras()
        self._receiver.close()
        self._receiver, self._lent = self._reading(), True
        return Lent(self._memory, dict(resources.arenas), releases, limit, self._upkeep)

    def _publish_live(self, nbytes: int) -> None:
        self._region[Word.LIVE_BYTES] = nbytes

    def _interrupted(self) -> bool:
        return self._supervisor.interrupted

    def _tick(self) -> None:
        """Run at every tick of a wait for an item: it says that somebody waits for one."""
        self._region[Word.TICK_NS] = perf_counter_ns()
        self._upkeep()

    def _upkeep(self) -> None:
        self._memory.flush()
        self._memory.collect()
        self._meter.flush()
        now = perf_counter_ns()
        if now - self._flushed_ns > _FLUSH_NS:
            self._flushed_ns = now
            self.flush()
            self._older.look()

    def flush(self) -> None:
        """Bring the counts to the board and the leases that are over to their owners."""
        if self._lent and self._thread != threading.get_ident():
            return  # the thread that iterates does it, and nothing of this may be done twice at a time
        self._memory.flush()
        self._rows.flush()
        self._region[Word.STARVED_NS] = self._receiver.starved_ns
        self._region[Word.COPIED_OUT] = self._receiver.copied_out

    @property
    def committed(self) -> Cursor:
        """The cursor of the last delivered item: all that comes after it can be made again from it."""
        return self._place.cursor

    def block_of(self, address: int, nbytes: int) -> Lease | None:
        """The lease in which these bytes lie, if it is alive."""
        return self._memory.find(address, nbytes)

    # ------------------------------------------------------------------ an epoch

    def epoch(self, epoch: int, cursor: Cursor | None = None) -> Iterator[Any]:
        """The items of an epoch from `cursor` on. The workers begin at once, not when the first item is asked for."""
        self._outside_ns, self._left_ns = self.outside_ns, 0
        self._seek(epoch, cursor or Cursor(), anew=not self._through)
        return self._watched(self._items(epoch))

    @property
    def outside_ns(self) -> int:
        """How long nobody iterated, from the first iteration on: between epochs, and behind the last one."""
        if not self._left_ns:
            return self._outside_ns
        return self._outside_ns + (self.ended_ns or perf_counter_ns()) - self._left_ns

    def _watched(self, items: Iterator[Any]) -> Iterator[Any]:
        generation = self._generation
        try:
            yield from items
        finally:
            if generation == self._generation:  # else another iteration has begun, and nobody was outside
                self._left_ns = perf_counter_ns()

    def _items(self, epoch: int) -> Iterator[Any]:
        while True:
            begin = perf_counter_ns()
            packet = self._receive()
            self.wait_ns += perf_counter_ns() - begin
            if packet is None:
                self._turn(epoch)
                continue
            if packet.kind == Kind.END:
                self._end = packet.count
            else:
                if packet.meta:
                    self._meta_of[packet.key[0]] = packet.meta
                if self._reorder.straight(packet):
                    box = self._taken(packet)
                    self._place.end(packet.key[0], self._meta_of.pop(packet.key[0], b""))
                    begin = perf_counter_ns()
                    yield box.pop()
                    self.busy_ns += perf_counter_ns() - begin
                    self._meter.publish(self._reorder.item)
                else:
                    self._reorder.add(packet)
            del packet
            yield from self._ready()
            if self._end is not None and self._reorder.item >= self._end:
                self.flush()
                self._through = True
                return

    def _receive(self) -> Received | None:
        if self._memory.leased > _FEW:
            self._look_at_held()
        elif self._held_bytes:
            self._hold(0)
        try:
            return self._receiver.receive(self._generation)
        except TransportError as error:
            raise RunError(f"sink: {error}", stage=SINK, worker=0) from error

    def _look_at_held(self) -> None:
        """A caller that keeps items gets copies from some point on, so that shared memory is left to work with."""
        if self._memory.leased < _MANY or not self.items % _LOOK_EVERY:
            self._hold(self._memory.held_bytes())

    def _hold(self, nbytes: int) -> None:
        self._held_bytes = self._region[Word.HELD_BYTES] = nbytes
        self._receiver.private = nbytes > self._plan.memory_bytes // 3

    def _seek(self, epoch: int, cursor: Cursor, *, anew: bool = True) -> None:
        self._thread = threading.get_ident()
        any_order = self._plan.any_order
        self._place = place_at(cursor, self._stretch, any_order=any_order)
        self._mending = self._mending or self._supervisor.recovery.broken
        seek = self._supervisor.seek(cursor, epoch, anew=anew)
        self._generation, self._through = seek.generation, False
        as_it_comes = any_order and not self._stretch
        self._reorder = Reorder(cursor.item, cursor.last, any_order=as_it_comes, out=cursor.out)
        self._meta_of = {}
        self._end = None
        self._meter.enter(self._generation, cursor.item, self._supervisor.windows.now[self._stretch])
        if self._older.enter(seek.era):
            self._older.name()

    def _ready(self) -> Iterator[Any]:
        for packet, item in self._reorder.ready():
            if packet is None:
                self._place.end(item, self._meta_of.pop(item, b""))
                self._meter.publish(self._reorder.item)
                continue
            if packet.kind != Kind.ITEM:
                self._place.leaf(packet.key, self._meta_of.get(item, b""))
                if packet.kind == Kind.SKIP:
                    self._place.skipped(Skip(self._plan.stage_names[packet.count], packet.key))
                continue
            box = self._taken(packet)
            del packet
            begin = perf_counter_ns()
            yield box.pop()
            self.busy_ns += perf_counter_ns() - begin

    def _taken(self, packet: Received) -> list[Any]:
        """The item of a packet that is about to be yielded, in a box: nothing here keeps it alive."""
        box, packet.value = [packet.value], None
        self._place.leaf(packet.key, self._meta_of.get(packet.key[0], b""))
        self._count(packet)
        return box

    def _count(self, packet: Received) -> None:
        now = perf_counter_ns() - self.begun_ns
        if not self.items:
            self.first_item_ns, self.first_wait_ns = now, self.wait_ns
        if self._mending:
            self._mending = False
            self._supervisor.recovery.delivered()
        self.items += 1
        self.samples += packet.samples
        if not self.items % self._every or self.items == 1:
            self.delivered.append((now, self.samples))
            if len(self.delivered) >= _THIN:
                self.delivered = self.delivered[::2]
                self._every *= 2

    # ------------------------------------------------------------------ when a wait was cut off

    def _turn(self, epoch: int) -> None:
        supervisor = self._supervisor
        if supervisor.failure is not None:
            raise supervisor.failure
        full = supervisor.full
        if supervisor.recovery.broken:
            self._seek(epoch, self.committed)
            return
        if full is None:
            return
        if supervisor.windows.halve() or self.items > self._full_at:  # what was delivered since has made room
            self._full_at, self._settled = self.items, False
            self._seek(epoch, self.committed)
            return
        if not self._settled:  # what was sent before may be on its way still, and all say what they hold
            self._settled = True
            sleep(_SETTLE_S)
            return
        self._hold(self._memory.held_bytes())
        raise full_error(full, self._plan, supervisor.board, supervisor.workers.values())

    def close(self) -> None:
        """Give back what can be given back."""
        self.ended_ns = perf_counter_ns()
        self._lent = False  # whoever iterated has stopped
        self.flush()
        self._receiver.close()

    def forget(self) -> None:
        """Break the circles through the receiver and the last error, once nothing is read or counted any more.

        So the mappings, each of which holds a descriptor, end with their last user and not at some later collection.
        """
        del self._receiver
        self._supervisor.failure = None
