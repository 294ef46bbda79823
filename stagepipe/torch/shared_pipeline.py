"""`SharedPipeline`: the pipeline of `Loader(..., share="node")`. Runs in the training process of every rank.

It has the interface of a `Pipeline`. The leader starts the machine's pipeline at first use; followers connect to it.
"""

from __future__ import annotations

import itertools
import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import msgspec

from stagepipe.api import Pipeline
from stagepipe.core import (
    Cursor,
    SkipCount,
    SourceIdentity,
    UsageError,
    format_owner_message,
    keep_until_exit,
    register_owner,
)
from stagepipe.engine import (
    EpochPosition,
    PipelineState,
    check_source,
    find_saved_skips,
    find_saved_source,
    make_state_dict,
    parse_state_dict,
)
from stagepipe.plan import Shard
from stagepipe.report import LiveRun, Report
from stagepipe.runtime import end_spare_server
from stagepipe.torch.follower import Follower
from stagepipe.torch.leader import Leader
from stagepipe.torch.rank_connection import RankEndpoint, derive_rendezvous_folder
from stagepipe.torch.ranks import RankTopology
from stagepipe.transport import Lease

_CLOSED_MESSAGE = "this loader is closed; make a new one"
_loader_numbers = itertools.count()
"""Numbers this process's shared loaders. Ranks create them in the same order, so equal numbers belong together."""


class SharedPipeline:
    """A machine's pipeline from the view of one rank: item k of an epoch goes to local rank k % local_world_size.

    `pipeline` does this machine's part of the work. On followers, it never starts and only describes the config.

    Raises RunError at the start or while iterating, naming a rank that did not connect or has ended.
    """

    def __init__(self, pipeline: Pipeline, topology: RankTopology) -> None:
        """Create it without starting workers."""
        if topology.local_rank:
            end_spare_server()  # the leader's workers do the work
        self._pipeline = pipeline
        self._topology = topology
        self._shard = Shard(topology.rank, topology.world_size, pipeline.shard.even)
        self._rendezvous_folder = derive_rendezvous_folder(
            (*topology.run_identity, str(topology.node_rank), str(next(_loader_numbers)))
        )
        self._endpoint: RankEndpoint | None = None
        self._state = PipelineState()
        self._saved_source: SourceIdentity | None = None
        """The source's identity in the loaded state, until an iteration has compared it."""
        self._saved_skips: SkipCount | None = None
        """The skip count in the loaded state, until an iteration continues it."""
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._owner_pid = 0

    # ------------------------------------------------------------------ start and end

    def start(self) -> Self:
        """Start this machine's pipeline, or connect to it, and wait until all its ranks are connected."""
        self._ensure_started()
        return self

    def _ensure_started(self) -> RankEndpoint:
        if self._state.closed_reason:
            raise UsageError(self._state.closed_reason)
        if self._endpoint is None:
            topology, folder = self._topology, self._rendezvous_folder
            if topology.local_rank:
                self._endpoint = Follower(topology, folder, self._config_description)
            else:
                self._endpoint = Leader(self._pipeline, topology, folder, self._config_description)
            self._finalizer = weakref.finalize(self, self._endpoint.close)
            self._owner_pid = os.getpid()
            register_owner(self)
        return self._endpoint

    def close(self) -> None:
        """Disconnect from the other ranks; on the leader, stop the workers."""
        self._state.close(self._state.closed_reason or _CLOSED_MESSAGE)
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._endpoint is not None:
            self._endpoint.close()
        self._pipeline.close()

    def abandon_in_child(self) -> None:
        """Leave the workers and connections to the process that created them, in a forked child."""
        self._state.close(format_owner_message("loader", self._owner_pid))
        keep_until_exit(self._endpoint)
        self._endpoint = None
        if self._finalizer is not None:
            self._finalizer.detach()

    def __enter__(self) -> Self:
        """Start the pipeline and return it."""
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the pipeline."""
        if isinstance(self._endpoint, Leader):
            self._endpoint.stop_dispatch()
            self._pipeline.__exit__(exc_type, exc, traceback)
        self.close()

    # ------------------------------------------------------------------ epochs

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one epoch, or the rest of a loaded one. Work starts when all ranks request their first item."""
        endpoint = self._ensure_started()
        self._check_source(endpoint)
        if self._saved_skips is not None:
            endpoint.resume_skip_count(self._saved_skips)
            self._saved_skips = None
        state = _RankIterationState(self._state.next_position)
        self._state.begin_iteration(state)
        return _RankIteration(self, endpoint, state)

    def _check_source(self, endpoint: RankEndpoint) -> None:
        """Raise UsageError if the data has changed since the next position was saved. All ranks compare alike."""
        if self._saved_source is not None and not self._state.next_position.is_start:
            current = endpoint.wait_for_source()
            if current is None:
                return  # the run has failed, which the iteration reports
            check_source(self._saved_source, current)
        self._saved_source = None

    def __len__(self) -> int:
        """Return the number of items per epoch on this rank. Raises TypeError if it is unknown."""
        items = self._ensure_started().length()
        if items is None:
            raise TypeError(
                "length unknown: the pipeline contains a stream, a generator, a filter or an order point of any size"
            )
        return Shard(self._topology.local_rank, self._topology.local_world_size, self._shard.even).count_items(items)

    @property
    def epoch(self) -> int:
        """See `Pipeline.epoch`."""
        return self._state.position().epoch

    def set_epoch(self, epoch: int) -> None:
        """See `Pipeline.set_epoch`. Call it with the same epoch on all ranks."""
        self._state.set_epoch(epoch)

    # ------------------------------------------------------------------ state

    @cached_property
    def _config_description(self) -> str:
        """The config, equal on all ranks. Objects from Python may contain the rank, so it has only their names."""
        return json.dumps(json.loads(self._pipeline.config_description) | self._sharing)

    @cached_property
    def _state_description(self) -> Mapping[str, str]:
        return {**self._pipeline._state_description, **self._sharing}  # noqa: SLF001 - as the pipeline's own state

    @property
    def _sharing(self) -> dict[str, str]:
        return {"share": "node", "local_world_size": str(self._topology.local_world_size)}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's position, after the last item that it received."""
        position = self._state.position()
        source, skipped = self._saved_source, self._saved_skips
        if source is None and self._endpoint is not None and not position.is_start:
            source = self._endpoint.wait_for_source()
        if skipped is None and self._endpoint is not None:
            skipped = self._endpoint.count_skips(position)
        return make_state_dict(position, self._state_description, self._shard, source, skipped)

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, allow_changed: bool = False
    ) -> None:
        """Resume the next iteration; the machine resumes at the lowest position of its ranks. Raises UsageError."""
        position = parse_state_dict(state, self._state_description, self._shard, allow_changed=allow_changed)
        self._state.load_position(position)
        self._saved_source = None if allow_changed else find_saved_source(state, self._shard)
        self._saved_skips = find_saved_skips(state, self._shard)

    # ------------------------------------------------------------------ for the loader

    def _attach_loader(self, *, keep_idle_pages: bool) -> None:
        """See `Pipeline._attach_loader`. Only the leader's value counts: if any rank pins, the leader does."""
        self._pipeline._attach_loader(keep_idle_pages=keep_idle_pages)  # noqa: SLF001 - forwarded

    def _find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the lease that holds these bytes of a yielded item, or None if no lease does."""
        return None if self._endpoint is None else self._endpoint.find_lease(address, nbytes)

    def progress(self, *, detailed: bool = False) -> LiveRun:
        """Return the figures of this machine's pipeline. Raises UsageError on every rank but the machine's first."""
        self._refuse_unless_owner("figures", "progress")
        return self._pipeline.progress(detailed=detailed)

    def report(self) -> Report:
        """Return the report of this machine's pipeline. Raises UsageError on every rank but the machine's first."""
        self._refuse_unless_owner("report", "report")
        return self._pipeline.report()

    def _refuse_unless_owner(self, what: str, method: str) -> None:
        if self._topology.local_rank:
            raise UsageError(
                f"only the rank that owns this machine's pipeline has the {what}; call {method}() on rank "
                f"{self._topology.leader_rank}"
            )


class _RankIterationState:
    """The position of an iteration. The pipeline refers to this; the iteration itself refers to the pipeline."""

    def __init__(self, begin: EpochPosition) -> None:
        """`begin` is the position before the first item."""
        self.reached = begin
        """The position. For a rank, `items_yielded` counts rounds, because it gets one item of each."""
        self.cursor: bytes | None = b""
        self.has_ended = False

    def advance(self, round_number: int, cursor: bytes | None) -> None:
        """Move past the rank's item of round `round_number`."""
        self.reached = EpochPosition(self.reached.epoch, round_number + 1)
        self.cursor = cursor

    def position(self) -> EpochPosition:
        """Return the position after the last yielded item; after the epoch's last item, the start of the next epoch."""
        if self.has_ended:
            return EpochPosition(self.reached.epoch + 1)
        if self.cursor is None:
            raise UsageError(
                "with `order` set to `any`, a state cannot be saved between the rows of a batch this large; save it "
                "after the batch's last row, make the batch smaller, or set `order` to `source`"
            )
        if not self.cursor:
            return self.reached
        return EpochPosition(
            self.reached.epoch, self.reached.items_yielded, msgspec.msgpack.decode(self.cursor, type=Cursor)
        )


class _RankIteration:
    """One iteration of a rank: an epoch, or the rest of one. It holds no reference to a yielded item."""

    def __init__(self, shared_pipeline: SharedPipeline, endpoint: RankEndpoint, state: _RankIterationState) -> None:
        """Request nothing before the first `next`, since the other ranks would wait for an epoch that nobody reads."""
        self._shared_pipeline = shared_pipeline
        self._pipeline_state = shared_pipeline._state  # noqa: SLF001 - this class is its iterator
        self._endpoint = endpoint
        self._state = state
        self._iteration_number = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        state = self._state
        if state.has_ended:
            raise StopIteration
        if self._pipeline_state.active_iteration is not state:
            self._pipeline_state.activate(state, state.reached)
        if not self._iteration_number:
            self._iteration_number = self._endpoint.begin_iteration(state.reached)
        item = self._endpoint.receive(self._iteration_number)
        if item is None:
            state.has_ended = True
            raise StopIteration
        state.advance(item.round_number, item.cursor)
        return item.box.pop()
