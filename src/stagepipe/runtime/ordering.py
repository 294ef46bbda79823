"""An order point: takes leaves in order, gives groups out, and feeds the next stretch. In its own worker."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, NamedTuple

from stagepipe.core import Cursor, Key, Skip, cursor_from_plain
from stagepipe.runtime.chain import Box, Chain
from stagepipe.runtime.gate import Gate, Meter
from stagepipe.runtime.messages import Seek
from stagepipe.runtime.outlet import HopOut, Surroundings, TurnedError
from stagepipe.runtime.said import Said, pack_said, unpack_said
from stagepipe.runtime.stage import Stage
from stagepipe.timing import Word
from stagepipe.transport import Kind, Received, Receiver, Reorder


class Ends(NamedTuple):
    """Where an order point ends stretch `reads` and begins the next one."""

    receiver: Receiver
    meter: Meter
    gate: Gate
    reads: int


class Output(NamedTuple):
    """An order point's output that is not sent yet."""

    number: int
    box: Box
    samples: int
    meta: bytes


class OrderRole:
    """Batch and Shuffle: takes leaves in order, gives groups out, and feeds the next stretch."""

    def __init__(self, stages: list[Stage], out: HopOut, ends: Ends, around: Surroundings) -> None:
        """The first of `stages` holds the grouping; the others are fused behind it."""
        self._stage, self._chain, self._out = stages[0], Chain(stages[1:], out, around.region), out
        self._receiver, self._meter, self._gate, self._reads = ends
        self._around = around
        self._grouping = stages[0].target
        self._outputs: deque[Output] = deque()
        self._generation = self._number = 0
        self._end: int | None = None
        self._finished = True
        self._begin(Cursor(), 0)

    def enter(self, seek: Seek) -> None:
        """Begin at this order point's part of the cursor."""
        cursor = cursor_from_plain(seek.cursors[self._reads]) or Cursor()
        following = cursor_from_plain(seek.cursors[self._reads + 1]) or Cursor()
        self._generation = seek.generation
        self._out.enter(seek)
        self._chain.impose(seek.imposed)
        self._begin(cursor, following.item)
        feeds = self._reads + 1
        self._gate.enter(seek.generation, following.item, seek.windows[feeds], seek.roomy_windows[feeds])
        self._meter.enter(seek.generation, cursor.item, seek.windows[self._reads])

    def _begin(self, cursor: Cursor, number: int) -> None:
        self._grouping.clear()
        self._outputs.clear()
        self._reorder = Reorder(cursor.item, cursor.last)
        self._place = self._group_begins = cursor._replace(emitted=0)
        self._skips = set(cursor.skips)
        self._from: int | None = None  # the source's items that the group is made of
        self._to = 0
        self._emitted, self._number = cursor.emitted, number
        self._end, self._finished = None, False
        self._meta_of: dict[int, bytes] = {}
        self._said: Said | None = None

    def step(self) -> None:
        """Send what is ready; else take one packet in."""
        if self._outputs:
            if not self._gate.wait(self._outputs[0].number, self._around.interrupted):
                raise TurnedError
            number, box, samples, meta = self._outputs.popleft()
            region = self._around.region
            region[Word.AT_ITEM] = number + 1
            self._chain.push((number,), box, samples, meta)
            region[Word.AT_ITEM] = 0
            return
        if self._end is not None and self._reorder.item >= self._end and not self._finished:
            self._finish()
            return
        packet = self._receiver.receive(self._generation)
        if packet is None:
            raise TurnedError
        if packet.kind == Kind.END:
            self._end = packet.count
            return
        if packet.meta:
            self._meta_of[packet.key[0]] = packet.meta
        self._reorder.add(packet)
        del packet
        self._take_ready()

    def _take_ready(self) -> None:
        closed = self._reorder.closed
        for packet, item in self._reorder.ready():
            if packet is None:
                self._end_item(item, self._meta_of.pop(item, b""))
                continue
            box, packet.value = [packet.value], None
            self._around.region[Word.AT_ITEM] = item + 1
            self._leaf(packet, box)
            self._around.region[Word.AT_ITEM] = 0
        if self._reorder.closed != closed:
            self._meter.publish(self._reorder.item)

    def _end_item(self, item: int, meta: bytes) -> None:
        after = self._hear(meta).after if self._reads else None
        self._place, self._said = Cursor(after, item + 1), None

    def _leaf(self, packet: Received, box: Box) -> None:
        skips = self._place.skips
        if self._reads and self._said is None:
            skips |= self._hear(packet.meta).skips
        if packet.kind == Kind.SKIP:
            skips |= {self._skip_of(packet)}
        item = packet.key[0]
        self._place = Cursor(self._place.upstream, item, packet.key, 0, skips)
        if packet.kind != Kind.ITEM:
            return
        said = self._said
        begin, self._to = (item, item + 1) if said is None else (said.begin, said.end)
        self._from = begin if self._from is None else self._from
        if self._add(packet.key, box, packet.samples):
            self._give(finished=False)

    def _hear(self, meta: bytes) -> Said:
        """What the order point before says of the item at hand. What shaped that, shapes the group."""
        if self._said is None:
            self._said = unpack_said(meta)
            self._skips |= self._said.skips
        return self._said

    def _skip_of(self, packet: Received) -> Skip:
        """The skip that a packet says: it shapes the group, and if the group is made again it must be one again."""
        skip = Skip(self._around.stages[packet.count], packet.key)
        self._skips.add(skip)
        return skip

    def _add(self, key: Key, box: Box, samples: int) -> bool:
        """Whether the group is complete with this one."""
        full: bool = self._stage.timed(key, lambda: self._grouping.add(box.pop(), samples))
        self._stage.count(key)
        return full

    def _flushed(self, *, finished: bool) -> list[tuple[Any, int]]:
        """The group's outputs, last first."""
        key = (self._group_begins.item,)
        rng = self._stage.random(self._group_begins.item, self._group_begins.last)
        outputs: list[tuple[Any, int]]
        outputs = self._stage.timed(key, partial(self._grouping.finish if finished else self._grouping.flush, rng))
        outputs.reverse()
        return outputs

    def _send_later(self, box: Box, samples: int, meta: bytes) -> None:
        self._outputs.append(Output(self._number, box, samples, meta))
        self._number += 1

    def _give(self, *, finished: bool) -> None:
        """The group is complete: its outputs, each with the cursor from which all after it can be made again."""
        outputs = self._flushed(finished=finished)
        skips = frozenset(self._skips)
        count = len(outputs)
        for at in range(count):
            value, samples = outputs.pop()
            if at >= self._emitted:
                self._send_later([value], samples, self._meta(at, count, skips))
            del value
        self._begin_group()

    def _begin_group(self) -> None:
        place = self._place
        self._group_begins, self._emitted, self._skips = place, 0, set(place.skips)
        self._from = None

    def _meta(self, at: int, count: int, skips: frozenset[Skip]) -> bytes:
        """What output `at` of a group of `count` says of itself."""
        begins = self._group_begins
        after = self._place if at == count - 1 else begins._replace(emitted=at + 1, skips=skips)
        return pack_said(Said(after, self._from or 0, self._to, skips))

    def _finish(self) -> None:
        self._finished = True
        self._give(finished=True)
        while self._outputs:
            self.step()
        self._out.end(self._number)
