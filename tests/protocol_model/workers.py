"""The workers of a stage: they share the hop before it and the hop after it."""

from __future__ import annotations

from collections import deque

from tests.protocol_model.cursors import ErrorSkip
from tests.protocol_model.memory import WIPED
from tests.protocol_model.packets import Hop, Packet, PacketKind
from tests.protocol_model.processes import Process, Seek, SharedState
from tests.protocol_model.rules import Rule
from tests.protocol_model.stage_functions import DeadlyValues, Function, SpecialResult
from tests.protocol_model.windows import CurrentItem


class Worker(Process):
    """Calls the stage's function on one item at a time."""

    def __init__(
        self,
        name: str,
        segment: int,
        shared: SharedState,
        *,
        stage: int,
        function: Function,
        deadly: DeadlyValues | None,
        incoming: Hop,
        outgoing: Hop,
    ) -> None:
        super().__init__(name, segment, shared)
        self.stage = stage
        self.function = function
        self._deadly = deadly
        self._epoch = 0
        self.incoming = incoming
        self.outgoing = outgoing
        self.in_hand: Packet | None = None
        """A packet that was read and not accepted yet."""
        self.unsent: deque[Packet] = deque()
        self.imposed_skips: frozenset[ErrorSkip] = frozenset()
        self.received_seek: Seek | None = None

    def seek(self, seek: Seek) -> None:
        """The control thread receives the seek; the main thread enters it between items."""
        self.received_seek = seek
        self.dead = False

    def die(self) -> None:
        """Lose what was received, made and announced."""
        super().die()
        self.unsent.clear()
        self.in_hand = None
        self.received_seek = None

    def packets_held(self) -> int:
        """Made and not sent, and in hand."""
        return len(self.unsent) + (self.in_hand is not None)

    def step(self) -> bool:
        """Enter a seek, send a packet, read a packet or process the one in hand: the first that is possible."""
        if self.dead:
            return False
        if self.unsent:
            return self._send()
        if self.received_seek:
            self.enter(self.received_seek)
            self.imposed_skips = self.received_seek.imposed_skips
            self._epoch = self.received_seek.epoch
            self.received_seek = None
            return True
        if self.in_hand is None:
            return self._read()
        if self.in_hand.generation > self.generation:
            return False  # the packet waits in hand until its seek arrives here
        packet = self.accept(self.in_hand)
        self.in_hand = None
        if packet is not None:
            self._process(packet)
        return True

    def _send(self) -> bool:
        if self.outgoing.is_full():
            return False
        self.outgoing.queue.append(self.unsent.popleft())
        return True

    def _read(self) -> bool:
        if not self.incoming.queue:
            return False
        self.in_hand = self.incoming.queue.popleft()
        return True

    def _process(self, packet: Packet) -> None:
        if packet.kind is not PacketKind.ITEM:
            self.unsent.append(packet)
            return
        value = self.memory.read(packet.block)
        self.shared.wiped_value_seen |= value == WIPED
        self.board.current_items[self.name] = CurrentItem(self._epoch, self.stage, packet.key)
        if ErrorSkip(self.stage, packet.key) in self.imposed_skips:
            result = SpecialResult.FAILED
        elif self._deadly and self._deadly.kills(value):
            self.die()
            return
        else:
            result = self.function(value)
        self._emit(packet, result)
        self.drop_lease(packet.block)
        if self.shared.keeps(Rule.CLEAR_CURRENT_ITEM):
            del self.board.current_items[self.name]

    def _emit(self, packet: Packet, result: object) -> None:
        if result is SpecialResult.FAILED:
            self.unsent.append(packet._replace(kind=PacketKind.SKIP, block=None, stage=self.stage))
        elif result is SpecialResult.DROPPED:
            self.unsent.append(packet._replace(kind=PacketKind.TOMBSTONE, block=None))
        elif result is SpecialResult.UNCHANGED:
            self.unsent.append(packet._replace(block=self.pass_on(packet.block)))
        elif isinstance(result, list):
            for part, value in enumerate(result):
                block = self.memory.allocate(self.name, self.era, value)
                self.unsent.append(packet._replace(key=(*packet.key, part), block=block))
            self.unsent.append(packet._replace(kind=PacketKind.CLOSE, block=None, parts=len(result)))
        else:
            block = self.memory.allocate(self.name, self.era, result)
            self.unsent.append(packet._replace(block=block))
