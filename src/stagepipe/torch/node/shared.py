"""`SharedPipeline`: what `Loader(..., share="node")` iterates over, on every rank. In its training process.

It has what a `Pipeline` has for a loader. The first rank's starts the pipeline when it is first used; the others'
connect to it.
"""

from __future__ import annotations

import itertools
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import msgspec

from stagepipe.core import UsageError, cursor_from_plain
from stagepipe.engine import Pipeline
from stagepipe.engine.iteration import Standing
from stagepipe.engine.state import Position, from_state, to_state
from stagepipe.plan import Shard
from stagepipe.report import Report
from stagepipe.torch.node.member import Member
from stagepipe.torch.node.owner import Owner
from stagepipe.torch.node.rendezvous import folder_of
from stagepipe.torch.node.seat import Seat
from stagepipe.torch.node.world import World
from stagepipe.transport import Lease

_CLOSED = "this loader is closed; make a new one"
_counts = itertools.count()
"""Which of this process's shared loaders it is: the ranks make theirs in the same order."""


class SharedPipeline:
    """A machine's pipeline, as one of its ranks sees it: item k of an epoch goes to local rank k % local_world_size.

    `pipeline` is this machine's part of the work; on all ranks but the first it only says what the config is.

    Raises RunError, while it starts or is iterated over, that names the rank that did not come, or is gone.
    """

    def __init__(self, pipeline: Pipeline, world: World) -> None:
        """Nothing is started yet."""
        self._pipeline, self._world = pipeline, world
        self._shard = Shard(world.rank, world.world_size, pipeline.shard.even)
        self._folder = folder_of((*world.run, str(world.machine), str(next(_counts))))
        self._seat: Seat | None = None
        self._standing = Standing()
        self._finalizer: weakref.finalize[Any, Any] | None = None

    # ------------------------------------------------------------------ start and end

    def start(self) -> Self:
        """Start this machine's pipeline, or wait for it: until all its ranks are there."""
        self._started()
        return self

    def _started(self) -> Seat:
        if self._standing.closed:
            raise UsageError(self._standing.closed)
        if self._seat is None:
            world = self._world
            if world.local_rank:
                self._seat = Member(world, self._folder, self._described)
            else:
                self._seat = Owner(self._pipeline, world, self._folder, self._described)
            self._finalizer = weakref.finalize(self, _close_in, os.getpid(), self._seat.close)
        return self._seat

    def close(self) -> None:
        """Say goodbye to the other ranks; the first one ends the workers."""
        self._standing.closed = _CLOSED
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._seat is not None:
            self._seat.close()
        self._pipeline.close()

    def __enter__(self) -> Self:
        """The pipeline itself, started."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        if isinstance(self._seat, Owner):
            self._seat.end()
            self._pipeline.__exit__(kind, error, trace)
        self.close()

    # ------------------------------------------------------------------ epochs

    def __iter__(self) -> Iterator[Any]:
        """One epoch, or the rest of the one that was loaded; work begins when all ranks ask for their first item."""
        seat = self._started()
        stand = _Stand(self._standing.next)
        self._standing.begin(stand)
        return _Iteration(self, seat, stand)

    def __len__(self) -> int:
        """How many items an epoch yields on this rank, as `Pipeline` has it. TypeError where nobody knows."""
        items = self._started().length()
        if items is None:
            message = "nobody knows how many items this pipeline yields: a stream, a generator or a filter is in it"
            raise TypeError(message)
        return Shard(self._world.local_rank, self._world.local_world_size, self._shard.even).count(items)

    @property
    def epoch(self) -> int:
        """See `Pipeline.epoch`."""
        return self._standing.position().epoch

    def set_epoch(self, epoch: int) -> None:
        """See `Pipeline.set_epoch`: the same on all ranks."""
        self._standing.set_epoch(epoch)

    # ------------------------------------------------------------------ state

    @cached_property
    def _described(self) -> str:
        told: dict[str, str] = json.loads(self._pipeline.description)
        told |= {"share": "node", "local_world_size": str(self._world.local_world_size)}
        return json.dumps(told, separators=(",", ":"))

    def state_dict(self) -> dict[str, Any]:
        """Where this rank stands: behind the last item that it was given."""
        return to_state(self._standing.position(), self._described, self._shard)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on there: on all ranks, from the lowest of their places. UsageError."""
        self._standing.load(from_state(state, self._described, self._shard))

    # ------------------------------------------------------------------ for the loader

    @property
    def consumer_name(self) -> str:
        """See `Pipeline.consumer_name`."""
        return self._pipeline.consumer_name

    @consumer_name.setter
    def consumer_name(self, name: str) -> None:
        self._pipeline.consumer_name = name

    @property
    def keep_pages(self) -> bool:
        """See `Pipeline.keep_pages`: where any rank may lock pages, so does the first."""
        return self._pipeline.keep_pages

    @keep_pages.setter
    def keep_pages(self, keep: bool) -> None:
        self._pipeline.keep_pages = keep

    def block_of(self, address: int, nbytes: int) -> Lease | None:
        """See `Pipeline.block_of`."""
        return None if self._seat is None else self._seat.block_of(address, nbytes)

    def report(self) -> Report:
        """The report of this machine's pipeline, on its first rank. UsageError on the others."""
        if self._world.local_rank:
            message = f"the report is with the rank that owns this machine's pipeline: rank {self._world.first_rank}"
            raise UsageError(message)
        return self._pipeline.report()


def _close_in(pid: int, close: Callable[[], None]) -> None:
    """Close what was collected: in its own process, not in one that was forked off it."""
    if os.getpid() == pid:
        close()


class _Stand:
    """Where an iteration stands. The pipeline keeps it, and not the iteration, which keeps the pipeline."""

    def __init__(self, begin: Position) -> None:
        """Before the first item."""
        self.at = begin
        self.cursor: bytes | None = b""
        self.ended = False

    def moved(self, number: int, cursor: bytes | None) -> None:
        """Behind the rank's item `number`."""
        self.at, self.cursor = Position(self.at.epoch, number + 1), cursor

    def position(self) -> Position:
        """Behind the last item yielded; behind the last of all, at the start of the next epoch."""
        if self.ended:
            return Position(self.at.epoch + 1)
        if self.cursor is None:
            message = "a place between the rows of a large batch that is opened again cannot be told with `order: any`"
            raise UsageError(message)
        if not self.cursor:
            return self.at
        return Position(self.at.epoch, self.at.items, cursor_from_plain(msgspec.msgpack.decode(self.cursor)))


class _Iteration:
    """One iteration of a rank: an epoch, or the rest of one. It keeps nothing of what it has yielded."""

    def __init__(self, shared: SharedPipeline, seat: Seat, stand: _Stand) -> None:
        """Nothing is asked for before the first item is: the other ranks would wait for one that nobody wants."""
        self._shared, self._standing, self._seat, self._stand = shared, shared._standing, seat, stand  # noqa: SLF001 - its other half
        self._ask = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        stand = self._stand
        if stand.ended:
            raise StopIteration
        self._standing.check(stand)
        if not self._ask:
            self._standing.entered(stand.at)
            self._ask = self._seat.ask(stand.at)
        dealt = self._seat.take(self._ask)
        if dealt is None:
            stand.ended = True
            raise StopIteration
        stand.moved(dealt.number, dealt.cursor)
        return dealt.box.pop()
