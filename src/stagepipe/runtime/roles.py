"""What a process does with items: feed a stretch (source), work on items (stage), restore order (order point).

Each role has `enter` (a seek) and `step` (one item, or one wait). A step raises `TurnedError` when its work is void.
"""

from __future__ import annotations

from time import perf_counter_ns

from stagepipe.config import BatchSpec
from stagepipe.core import Cursor, cursor_from_plain
from stagepipe.runtime.chain import Chain
from stagepipe.runtime.feeding import Feed
from stagepipe.runtime.gate import Gate
from stagepipe.runtime.messages import Seek
from stagepipe.runtime.outlet import HopOut, Surroundings, TurnedError
from stagepipe.runtime.reading import SourceReader
from stagepipe.runtime.stage import Stage
from stagepipe.timing import Word
from stagepipe.transport import Kind, Received, Receiver


class SourceRole:
    """Reads the source and feeds the first stretch."""

    def __init__(
        self, reader: SourceReader, stages: list[Stage], out: HopOut, gate: Gate, around: Surroundings
    ) -> None:
        """`reader` reads what the first of `stages` has built; the others are fused behind it."""
        self._reader, self._out, self._gate, self._around = reader, out, gate, around
        self._feed = Feed(reader, stages, out, around.region)
        self.total = reader.total
        self._at = 0
        self._ended = True

    def enter(self, seek: Seek) -> None:
        """Begin at the source's place in the cursor."""
        self._out.enter(seek)
        cursor = cursor_from_plain(seek.cursors[0]) or Cursor()
        self._at, self._ended = cursor.item, False
        self._gate.enter(seek.generation, cursor.item, seek.windows[0], seek.roomy_windows[0])
        region = self._around.region
        region[Word.EPOCH], region[Word.ITEMS_IN] = seek.epoch, self._at
        self._feed.enter(seek.epoch, self._at, seek.imposed)
        total = self._reader.total
        region[Word.TOTAL] = 0 if total is None else total + 1

    def step(self) -> None:
        """Send one item, or the end."""
        if self._ended:
            self._around.wait()
            return
        if not self._gate.wait(self._at, self._around.interrupted):
            raise TurnedError
        region = self._around.region
        region[Word.AT_ITEM] = self._at + 1
        if not self._feed.step(self._at):
            region[Word.TOTAL] = self._at + 1
            region[Word.EPOCH_END_NS] = perf_counter_ns()
            self._out.end(self._at)
            self._ended = True
            return
        self._at += 1
        region[Word.AT_ITEM] = 0
        region[Word.ITEMS_IN] = self._at
        region[Word.SENT] += 1


class StageRole:
    """Works on one item at a time, or with `batch` on several."""

    def __init__(self, stages: list[Stage], out: HopOut, receiver: Receiver, around: Surroundings) -> None:
        """All of `stages` run on each item, one after the other."""
        self._chain, self._out, self._receiver, self._around = Chain(stages, out, around.region), out, receiver, around
        self._batch, self._name = stages[0].plan.batch, stages[0].name
        self._alone: list[tuple[int, int]] = []
        self._generation = 0

    def enter(self, seek: Seek) -> None:
        """Nothing is remembered from one item to the next."""
        self._generation = seek.generation
        self._out.enter(seek)
        self._chain.impose(seek.imposed)
        self._alone = [(first, last) for stage, first, last in seek.alone if stage == self._name]

    def step(self) -> None:
        """One packet, or up to `batch.size` of them."""
        packet = self._receiver.receive(self._generation)
        if packet is None:
            raise TurnedError
        if packet.kind != Kind.ITEM:
            self._out.forward(packet)
        elif self._batch is not None:
            self._step_many(packet, self._batch)
        else:
            box, packet.value = [packet.value], None
            key, region = packet.key, self._around.region
            if len(key) == 1:
                region[Word.AT_ITEM] = key[0] + 1
                self._chain.push(key, box, packet.samples, packet.meta)
                region[Word.AT_ITEM] = 0
            else:
                region.at(key)
                self._chain.push(key, box, packet.samples, packet.meta)
                region.at(())

    def _step_many(self, first: Received, batch: BatchSpec) -> None:
        packets, deadline = [first], perf_counter_ns() + batch.max_wait_ns
        packet: Received | None = None
        while len(packets) < batch.size:
            left_ns = deadline - perf_counter_ns()
            packet = self._receiver.receive(self._generation, max(left_ns, 0) / 1e9)
            if packet is None:
                if self._around.interrupted():
                    raise TurnedError
                break
            if packet.kind == Kind.ITEM:
                packets.append(packet)
            else:
                self._out.forward(packet)
        keys = [packet.key for packet in packets]
        heads = [(packet.samples, packet.meta) for packet in packets]
        values = [packet.value for packet in packets]
        packets.clear()
        first.value = None
        del packet
        region = self._around.region
        if any(first <= key[0] <= last for key in keys for first, last in self._alone):
            values.reverse()
            for key, head in zip(keys, heads, strict=True):
                region.at(key)
                self._chain.push_many([key], [values.pop()], [head])
        else:
            region.at_many(keys)
            self._chain.push_many(keys, values, heads)
        region.at(())
