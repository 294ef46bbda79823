"""The plan as frozen values: processes, hops, segments, the shard of a rank. The planner makes it, the engine runs it.

Pure. The caller's process holds the plan; each worker receives its own `ProcessPlan` and `HopPlan`s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stagepipe.core import UsageError
from stagepipe.spec import SinkSpec, StageSpec, WorkerRange

if TYPE_CHECKING:
    from stagepipe.costs import CostCurves
    from stagepipe.transport import TransportRule

EvenMode = Literal["pad", "drop"]
"""How all ranks get the same number of source items: `pad` repeats the first items, `drop` leaves out the last ones."""


@dataclass(frozen=True)
class Shard:
    """The shard of one of `world_size` ranks. A rank numbers its own items 0, 1, 2 ...: their local index.

    >>> shard = Shard(rank=1, world_size=4, even="pad")
    >>> shard.count_items(6), [shard.to_source_index(index, 6) for index in range(2)]
    (2, [1, 5])
    >>> [Shard(rank, 4).count_items(6) for rank in range(4)], Shard(3, 4, "drop").count_items(6)
    ([2, 2, 1, 1], 1)

    Raises UsageError if `rank` is not in 0..world_size - 1 or `even` is unknown.
    """

    rank: int = 0
    world_size: int = 1
    even: EvenMode | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        numbers = (self.rank, self.world_size)
        are_integers = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not are_integers or not 0 <= self.rank < self.world_size:
            message = (
                f"rank={self.rank!r} of world_size={self.world_size!r}: both must be integers, and the rank from 0 to "
                "world_size - 1; pass torch.distributed.get_rank() and get_world_size()"
            )
            raise UsageError(message)
        if self.even not in (None, "pad", "drop"):
            message = (
                f"even={self.even!r}: must be 'pad' (repeat the first items), 'drop' (leave out the last ones) or None"
            )
            raise UsageError(message)

    def count_items(self, total_items: int) -> int:
        """The number of this rank's items in an epoch of `total_items`."""
        if self.even == "drop":
            return total_items // self.world_size
        padding = self.world_size - 1 if self.even == "pad" else self.world_size - 1 - self.rank
        return (total_items + padding) // self.world_size

    def check_source(self, total_items: int) -> None:
        """Raise UsageError if a source of `total_items` lacks a requested item number."""

    def to_item_number(self, local_index: int) -> int:
        """The number, in the source's order, of this rank's item `local_index`. Messages and seeds use it."""
        return local_index * self.world_size + self.rank

    def to_source_index(self, local_index: int, total_items: int) -> int:
        """The index of this rank's item in a source of `total_items`. Padding wraps around to the first item."""
        return self.to_item_number(local_index) % total_items

    def slice_stream(self, stream: Iterator[Any], start_index: int) -> Iterator[Any]:
        """Iterate over this rank's items, from its item `start_index` on, of a stream that is at its start."""
        return itertools.islice(stream, self.to_item_number(start_index), None, self.world_size)

    def for_segment(self, segment: int) -> Shard:
        """The shard that numbers the items of a segment. Each rank numbers its own groups of items."""
        del segment
        return self


@dataclass(frozen=True)
class SubsetShard(Shard):
    """Only the source items `items`, numbered and seeded as in a run of all items.

    >>> shard = SubsetShard(items=(3, 8))
    >>> shard.count_items(20), shard.to_item_number(1), shard.to_source_index(1, 20)
    (2, 8, 8)
    >>> "".join(shard.slice_stream(iter("abcdefghij"), 0))
    'di'
    """

    items: tuple[int, ...] = ()

    def count_items(self, total_items: int) -> int:
        """The number of `items` that a source of `total_items` has."""
        return sum(item < total_items for item in self.items)

    def check_source(self, total_items: int) -> None:
        """Raise UsageError unless a source of `total_items` has all `items`."""
        missing = [item for item in self.items if item >= total_items]
        if missing:
            message = (
                f"an epoch of this source has {total_items:,} items, so there is no item {missing[0]:,} to run; give "
                "numbers below that, or use the source that they come from"
            )
            raise UsageError(message)

    def to_item_number(self, local_index: int) -> int:
        """The number in the source's order. An index beyond the last item stays as it is."""
        return self.items[local_index] if local_index < len(self.items) else local_index

    def to_source_index(self, local_index: int, total_items: int) -> int:
        """The index of the item in a source of `total_items`."""
        del total_items
        return self.items[local_index]

    def slice_stream(self, stream: Iterator[Any], start_index: int) -> Iterator[Any]:
        """Yield the items from `items[start_index]` on, of a stream at its start. UsageError if it ends early."""
        wanted = set(self.items[start_index:])
        stream_items = 0
        for index, value in enumerate(itertools.islice(stream, max(wanted, default=-1) + 1)):
            stream_items = index + 1
            if index in wanted:
                yield value
        if wanted:
            self.check_source(stream_items)

    def for_segment(self, segment: int) -> Shard:
        """Groups of the items are numbered from 0."""
        return UNSHARDED if segment else self


UNSHARDED = Shard()
"""The shard of the only rank, which has all items."""


class ProcessRole(Enum):
    """The role of a process in the pipeline."""

    SOURCE = "source"
    STAGE = "stage"
    ORDER_POINT = "order point"


class ItemIdentities(Protocol):
    """Identifies the source item behind a number in an epoch. It is pickled for the workers."""

    def begin(self, epoch: int, seed: int) -> None:
        """Begin an epoch."""

    def identify(self, number: int) -> str:
        """Return an identifier that is the same in each epoch and run. Raises OSError for a missing file."""


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """Where a stage keeps its outputs. `fingerprint` covers everything that produces them, except the item.

    `identities` identifies the items of the source; without it, an item is identified by its number in the epoch.
    `identifies_by_input`: the stage's input is an index that identifies the item.
    """

    folder: Path
    fingerprint: str
    is_deterministic: bool
    identities: ItemIdentities | None = None
    identifies_by_input: bool = False


@dataclass(frozen=True, kw_only=True)
class StagePlan(StageSpec):
    """One stage, or the source, inside a process. `index` counts all stages of the plan; the source is 0.

    Without a `cache_plan`, a stage keeps nothing, whatever its `cache`: in a probe, and with `--no-cache`.
    """

    index: int = 0
    cache_plan: CachePlan | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """A stage with the stages fused into it, and the number of workers that run them.

    `workers` is their number at the start; it may change within `worker_bounds` during the run. Without bounds it is
    fixed. `input_segment` and `output_segment` differ only at an order point.
    """

    role: ProcessRole
    stages: tuple[StagePlan, ...]
    workers: int
    input_segment: int
    output_segment: int
    sends_chunks: bool = False  # several consecutive items in one packet: see `chunks`
    chunk_batch_size: int = 0  # the samples of a batch that is made of the chunks
    visible_devices: tuple[str, ...] | None = None  # CUDA_VISIBLE_DEVICES of each slot; None: inherited
    worker_bounds: WorkerRange | None = None

    @property
    def first_stage(self) -> StagePlan:
        """The stage into which the others are fused. Its keys set up the process, except for `workers`."""
        return self.stages[0]

    @property
    def thread_count(self) -> int:
        """The number of threads of each worker that process items; 0: the main thread does."""
        return self.first_stage.concurrency if self.first_stage.has_items_in_progress else 0

    @property
    def makes_parts(self) -> bool:
        """Whether it collects items for sinks with workers."""
        return bool(self.first_stage.sink_path) and self.role is ProcessRole.ORDER_POINT

    @property
    def items_per_output(self) -> int:
        """The number of inputs of one output; 0: as many as fit into a part of a sink."""
        return 0 if self.makes_parts else math.prod(stage.items_per_output for stage in self.stages)

    @property
    def slot_count(self) -> int:
        """The maximum number of workers at a time: each has a slot from the start."""
        return self.workers if self.worker_bounds is None else max(self.workers, self.worker_bounds.maximum)

    @property
    def copies_all_input(self) -> bool:
        """Whether each arriving item is copied, for a stage that modifies it.

        A stage with a `when`, if it is the only one in its process, copies only matching items; the rest passes by
        uncopied.
        """
        return self.first_stage.mutable and (self.first_stage.when is None or len(self.stages) > 1)

    @property
    def name(self) -> str:
        """The name of the first stage in the process."""
        return self.first_stage.name


@dataclass(frozen=True, kw_only=True)
class HopPlan:
    """The hop from one process to the next; `source` and `target` are process names.

    `is_threshold_fixed`: the config sets the threshold. `transport`: the import path of a transport that is not built
    in.
    """

    source: str
    target: str
    rule: TransportRule
    capacity_packets: int
    is_threshold_fixed: bool = False
    transport: str = ""

    @property
    def mode(self) -> str:
        """The config's mode."""
        return self.rule.mode

    @property
    def is_adaptive(self) -> bool:
        """Whether the rule may change during the run: neither the mode nor the threshold comes from the config."""
        return self.mode == "auto" and not self.is_threshold_fixed


@dataclass(frozen=True)
class SegmentPlan:
    """The part of the pipeline between two order points. At most `window` items are in flight in it.

    `small_item_window` applies while the items take little memory (`window: auto`): small items then share wake-ups.
    """

    window: int
    small_item_window: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run before it starts. `processes` are in pipeline order; the sink runs in the caller's process."""

    name: str
    processes: tuple[ProcessPlan, ...]
    hops: tuple[HopPlan, ...]
    segments: tuple[SegmentPlan, ...]
    memory_bytes: int
    seed: int
    any_order: bool
    curves: CostCurves
    cpu_count: int
    config_dir: Path | None = None
    sinks: tuple[SinkSpec, ...] = ()
    limit: int | None = None
    config_sha256: str = ""
    source_sha256: str = ""
    keep_idle_pages: bool = False
    shard: Shard = UNSHARDED
    is_probe: bool = False  # workers report samples of the first items they send
    records_digests: bool = False  # workers report a digest of each item they send
    max_restarts: int = 10
    start: str = "fork"  # how workers start: "fork" or "spawn"
    preload: tuple[str, ...] = ()  # modules that are imported before the workers are forked
    uses_torch: bool = False  # a target imports torch
    forks_caller: bool = False  # the workers are forks of the caller and have its objects
    max_writers: int | None = None  # limit for each sink, so that their parts fit the memory; None: no limit
    max_skipped: int | float | None = None  # items that may fail; a float is a share of the source's items
    attach: bool = True  # other processes of the user may attach to the run
    consumer_name: str = "consumer"  # the receiver of the items: a loop, or sinks in the caller's process
    is_consumer_sink: bool = False

    @property
    def can_scale(self) -> bool:
        """Whether any number of workers may change during the run."""
        bounds = [process.worker_bounds for process in self.processes if process.worker_bounds is not None]
        return any(each.minimum < each.maximum for each in bounds)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The names of all stages, the source first. `StagePlan.index` is an index into this tuple."""
        return tuple(stage.name for process in self.processes for stage in process.stages)


SINK_NAME = "sink"
"""The target name of the last hop."""


@dataclass(frozen=True, kw_only=True)
class PieceSample:
    """One piece of an item. `name` is its path in the item: `image`, `meta.box`, `[0]`, or `item` for the whole item.

    `is_in_arena`: the piece was in shared memory before it was sent. `is_pickled`: the piece travels inside the pickle,
    as do bytes, strings and arrays below 2 KB; the others have a separate buffer.
    """

    name: str
    nbytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    is_in_arena: bool = False
    is_pickled: bool = False


@dataclass(frozen=True)
class ItemSample:
    """An item as it was sent. `pickle_bytes` is the size of its pickle, without the buffers."""

    pieces: tuple[PieceSample, ...]
    pickle_bytes: int


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Samples of the first items that one process of a probe run sent, in order.

    `cpu_ns[i]` is the CPU time of the process when it sampled item i, so the cost of the start can be told apart from
    the cost of the items. `cpu_delay_ns[i]` is the time until then in which the process was runnable but had no CPU.
    The `final_` fields are the same at the end of the probe. All are 0 if the kernel does not report them.
    """

    items: tuple[ItemSample, ...] = ()
    cpu_ns: tuple[int, ...] = ()
    cpu_delay_ns: tuple[int, ...] = ()
    final_cpu_ns: int = 0
    final_cpu_delay_ns: int = 0
