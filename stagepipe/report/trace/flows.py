"""Which sending belongs to which receipt: the flows of a trace. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from stagepipe.core import Key
from stagepipe.report.trace.trace_data import TraceTrack
from stagepipe.timing import TraceKind, TraceRecord

_HopKey = tuple[int, int, Key]
"""What names a message: its hop, its generation and its item's key."""


@dataclass
class Flows:
    """The messages of a trace by hop, generation and key, each with a number and the time at which it was sent.

    Only a message of which the trace has both ends is a flow: the other end of another was overwritten in its ring, was
    dropped by a seek, or died with its process.
    """

    sent: dict[_HopKey, tuple[int, int]] = field(default_factory=dict)
    received: set[_HopKey] = field(default_factory=set)

    @classmethod
    def find(cls, tracks: Sequence[TraceTrack]) -> Flows:
        """Find the flows of a run."""
        flows = cls()
        numbers = count(1)
        for track in tracks:
            for record in track.ring.iter_records():
                if record.kind == TraceKind.SEND and not record.is_failed:
                    flows.sent[track.group, record.generation, record.key] = (next(numbers), record.begin_ns)
                elif record.kind == TraceKind.RECEIVE:
                    flows.received.add((track.group - 1, record.generation, record.key))
        return flows

    def find_outgoing(self, group: int, record: TraceRecord) -> int:
        """Return the number of the flow that begins with a sending; 0 if none does."""
        key = (group, record.generation, record.key)
        number, begin_ns = self.sent.get(key, (0, 0))
        is_flow = key in self.received and begin_ns == record.begin_ns and not record.is_failed
        return number if is_flow else 0

    def find_incoming(self, group: int, record: TraceRecord) -> tuple[int, int]:
        """Return the number of the flow that ends with a receipt and when its message was sent; (0, 0) if none does."""
        return self.sent.get((group - 1, record.generation, record.key), (0, 0))

    @property
    def count(self) -> int:
        """How many messages have both ends."""
        return len(self.sent.keys() & self.received)

    @property
    def unreceived(self) -> int:
        """How many messages were sent whose receipt the trace does not have."""
        return len(self.sent) - self.count

    @property
    def unsent(self) -> int:
        """How many messages were received whose sending the trace does not have."""
        return len(self.received) - self.count
