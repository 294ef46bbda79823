"""A stage after an order point, with several workers: actors of Ray that take one item each. In the caller's process.

Ray Data has no input but blocks that it has made itself, so what an order point puts out cannot go back into it. A pool
gives each item to the actor that has least to do, and takes the results in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.core import Key, RunError
from stagepipe.engine.inline_hops import InlineOutput
from stagepipe.engine.ray.blocks import BlockBuilder, HopClock, Row, iter_rows
from stagepipe.engine.ray.workers import PackedOperator, StageOperator
from stagepipe.runtime import Box, UnpicklableResultError, format_key

_CALLS_PER_ACTOR: Final = 2
"""One that it works on, and the next, so that it never waits for this process."""


class StageActor:
    """What an actor of a pool runs: the stages of a process, on a block at a time."""

    def __init__(self, packed: PackedOperator) -> None:
        """Do not build the stages yet, as `StageOperator` does."""
        self._operator = StageOperator(packed)

    def run(self, table: Any) -> list[Any]:
        """Return the blocks that the stages make of a block."""
        return list(self._operator(table))


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """A pool of `size` actors: `make_options` makes their options of Ray, and `pack` their operator for an epoch.

    `sender` is the stage before it. `take_row` takes each row of a result, with the output that its item goes to;
    `sent_clock` counts what is sent. `describe_error` makes the error that ends the run of one of Ray's.
    """

    sender: str
    size: int
    make_options: Callable[[], dict[str, Any]]
    pack: Callable[[int], PackedOperator]
    take_row: Callable[[Row, InlineOutput], None]
    sent_clock: HopClock
    describe_error: Callable[[Exception], Exception]


@dataclass
class _PoolWorker:
    """An actor, and the calls that it has not answered."""

    actor: Any
    calls: deque[Any] = field(default_factory=deque)


class PoolProcess(InlineOutput):
    """A stage process in a pool of actors. Items go on in the order in which they came."""

    def __init__(self, settings: PoolSettings, downstream: InlineOutput) -> None:
        super().__init__(downstream.on_dead_letter)
        self._settings = settings
        self._downstream = downstream
        self._builder = BlockBuilder()
        self._packed: Any = None
        """Refers to the operator, which an actor that is restarted reads again."""
        self._workers: list[_PoolWorker] = []
        self._calls: deque[tuple[_PoolWorker, Any]] = deque()
        """The calls of all actors, in the order of their items."""

    def start_epoch(self, epoch: int) -> None:
        """Start the actors of an epoch, and end those of another."""
        import ray

        self.end()
        make_actor = ray.remote(StageActor).options(**self._settings.make_options())
        self._packed = ray.put(self._settings.pack(epoch))
        self._workers = [_PoolWorker(make_actor.remote(self._packed)) for _ in range(self._settings.size)]
        self._downstream.start_epoch(epoch)

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Give an item to the actor that has least to do. Waits for the oldest one while all have enough."""
        del meta
        self._encode(key, box.pop(), samples)
        worker = min(self._workers, key=lambda worker: len(worker.calls))
        call = worker.actor.run.remote(self._builder.build())
        worker.calls.append(call)
        self._calls.append((worker, call))
        while len(self._calls) >= _CALLS_PER_ACTOR * len(self._workers):
            self._take_oldest()

    def _encode(self, key: Key, value: Any, samples: int) -> None:
        clock, sender = self._settings.sent_clock, self._settings.sender
        started_ns = perf_counter_ns()
        try:
            nbytes = self._builder.add_item(key, value, samples)
        except Exception as error:
            reason = UnpicklableResultError(value, error)
            message = f"stage {sender}, worker 0, item {format_key(key)}: {reason}"
            raise RunError(message, stage=sender, worker=0, item=format_key(key)) from error
        clock.sent_bytes.append(nbytes)
        clock.encode_ns.append(perf_counter_ns() - started_ns)

    def _take_oldest(self) -> None:
        import ray

        worker, call = self._calls.popleft()
        try:
            tables = ray.get(call)
        except (ray.exceptions.RayError, ray.exceptions.RaySystemError) as error:
            raise self._settings.describe_error(error) from error
        worker.calls.remove(call)
        for table in tables:
            for row in iter_rows(table):
                self._settings.take_row(row, self._downstream)

    def finish_epoch(self) -> None:
        """Wait for all items, and end the actors."""
        while self._calls:
            self._take_oldest()
        self.end()
        self._downstream.finish_epoch()

    def kill(self) -> None:
        """End the actors, from any thread: what waits for one of them gets an error."""
        import ray

        for worker in list(self._workers):
            ray.kill(worker.actor)

    def end(self) -> None:
        """End the actors, whatever they are doing. Call it while Ray is connected."""
        self.kill()
        self._workers = []
        self._packed = None
        self._calls.clear()
