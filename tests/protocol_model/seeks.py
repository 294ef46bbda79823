"""The supervisor's part of a seek. An epoch's start, an abandoned iteration, a resume and a death are all this."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.protocol_model.cursors import Cursor, cursors_of_segments
from tests.protocol_model.deaths import Deaths, OnPoison
from tests.protocol_model.order_points import Sink
from tests.protocol_model.processes import Process, Seek, SharedState
from tests.protocol_model.rules import Rule

MAX_STALLS = 2
"""The run fails at one more stall without a delivery since the first."""


class SeekCoordinator:
    """Names cursors under new generations, and notifies the processes one by one, in a random order."""

    def __init__(
        self,
        rnd: random.Random,
        shared: SharedState,
        processes: Sequence[Process],
        sink: Sink,
        on_poison: OnPoison | None,
    ) -> None:
        self._rnd = rnd
        self._shared = shared
        self._processes = processes
        self._sink = sink
        self.generation = 0
        self.era = 0
        self.epoch = 0
        self._era_began_in = 0
        """The first generation of this era."""
        self._cursor: Cursor | None = None
        """The cursor that the latest seek named."""
        self.pending: list[tuple[Process, Seek]] = []
        """The processes that have not received the latest seek."""
        self.asking = False
        """Whether the supervisor waits for the sink's committed cursor."""
        self._needs_new_era = False
        self.stall_count = 0
        """How often nothing could move."""
        self._stalls = 0
        self._delivered_before_stall = 0
        self.deaths = Deaths(shared, on_poison)
        self.has_failed = False

    def recover(self, dead: Process) -> None:
        """Blame a death, and ask for a seek under a new era."""
        self.has_failed |= not self.deaths.blame(dead, self.epoch, self.generation)
        self._ask(new_era=True)

    def recover_from_stall(self) -> None:
        """Nothing moves: ask for a seek, unless that has not helped before."""
        delivered = self._sink.delivery_count
        if delivered != self._delivered_before_stall and self._shared.keeps(Rule.FORGET_STALLS):
            self._stalls = 0
        self._delivered_before_stall = delivered
        self._stalls += 1
        self.stall_count += 1
        self.has_failed |= self._stalls > MAX_STALLS
        self._ask(new_era=False)

    def _ask(self, *, new_era: bool) -> None:
        """Ask the sink to stop and to answer with its committed cursor."""
        self._needs_new_era |= new_era
        if self._shared.keeps(Rule.STOP_SINK_FIRST):
            self.asking = True
        else:
            self.begin_generation(self._sink.cursor, self.epoch, new_era=self._needs_new_era)

    def answer(self) -> None:
        """The sink stops and answers. If it has not entered the last seek, it has delivered nothing since."""
        self.asking = False
        self._sink.stop()
        entered = self._sink.generation == self.generation
        cursor = self._sink.cursor if entered else self._cursor
        self.begin_generation(cursor, self.epoch, new_era=self._needs_new_era)

    def begin_generation(self, cursor: Cursor | None, epoch: int, *, new_era: bool) -> None:
        """Name the cursor under a new generation. An older seek that has not arrived everywhere is void."""
        self.generation += 1
        self.epoch = epoch
        self._needs_new_era = False
        self._cursor = cursor
        if new_era:
            self.era += 1
            self._era_began_in = self.generation
        segments = self._sink.segment + 1
        cursors = cursors_of_segments(cursor, segments)
        self._shared.board.first_numbers = [each.item for each in cursors[1:]] + [0]
        imposed_skips = self.deaths.poison_skips(epoch).union(*(each.skips for each in cursors))
        seeks = [
            Seek(
                generation=self.generation,
                era=self.era,
                epoch=epoch,
                cursor=cursors[segment],
                first_number=self._shared.board.first_numbers[segment],
                imposed_skips=imposed_skips,
            )
            for segment in range(segments)
        ]
        self.pending = [(process, seeks[process.segment]) for process in self._processes]

    def notify_one(self) -> None:
        """One process receives the latest seek."""
        process, seek = self.pending.pop(self._rnd.randrange(len(self.pending)))
        process.seek(seek)

    def all_entered_era(self) -> bool:
        """Whether no process works in an older era."""
        return all(process.generation >= self._era_began_in for process in self._processes)

    def delivered_source_item(self) -> int:
        """The source items below this number are delivered for good."""
        if self._sink.generation != self.generation or self._sink.epoch != self.epoch:
            return 0
        return cursors_of_segments(self._sink.cursor, self._sink.segment + 1)[0].item
