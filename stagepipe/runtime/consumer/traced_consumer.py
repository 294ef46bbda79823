"""The consumer of a run that is traced: it also writes the caller's work on each item into the trace.

In the caller's process, on the thread that iterates.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

from stagepipe.core import Key
from stagepipe.runtime.consumer.consumer import Consumer
from stagepipe.runtime.consumer.delivery import GenerationDelivery
from stagepipe.runtime.supervisor import Supervisor
from stagepipe.timing import TraceBuffer, TraceKind
from stagepipe.transport import ReceivedPacket


class TracedConsumer(Consumer):
    """A consumer that traces what its caller does between two items."""

    def __init__(self, trace: TraceBuffer, supervisor: Supervisor) -> None:
        """Receive from the last hop of the supervisor's run."""
        super().__init__(supervisor)
        self._trace = trace
        self._delivered_key: Key = (-1,)

    def _take_item(self, packet: ReceivedPacket) -> list[Any]:
        self._delivered_key = packet.key
        return super()._take_item(packet)

    def _iter_items(self, epoch: int, delivery: GenerationDelivery, iteration: int) -> Iterator[Any]:
        items = super()._iter_items(epoch, delivery, iteration)
        for box in map(_put_into_box, items):  # no name here may hold an item while the caller has it
            key, begin_ns = self._delivered_key, perf_counter_ns()
            try:
                yield box.pop()
            finally:
                self._trace.add(TraceKind.CONSUME, begin_ns, perf_counter_ns(), key)


def _put_into_box(item: Any) -> list[Any]:
    return [item]


def make_consumer(supervisor: Supervisor) -> Consumer:
    """Return the consumer of a run, one that is traced if the run is."""
    trace = supervisor.resources.consumer_trace
    return Consumer(supervisor) if trace is None else TracedConsumer(trace, supervisor)
