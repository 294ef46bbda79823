"""The plan as frozen values: processes, hops and segments. The planner makes it and the engine runs it.

Pure. The caller's process holds the plan; each worker receives its own `ProcessPlan` and `HopPlan`s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from stagepipe.core import ConfigSyntax
from stagepipe.costs import CostCurves, TransportRule
from stagepipe.plan.shard import UNSHARDED, Shard
from stagepipe.spec import SinkSpec, StageSpec


class ProcessRole(Enum):
    """The part that a process plays in the pipeline."""

    SOURCE = "source"
    STAGE = "stage"
    ORDER_POINT = "order point"


class ItemIdentities(Protocol):
    """Tells which item of the source has a number in an epoch. It is pickled for the workers."""

    def begin(self, epoch: int, seed: int) -> None:
        """Begin an epoch."""

    def identify(self, number: int) -> str:
        """Return what identifies the item, the same in each epoch and run. Raises OSError for a file that is gone."""


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """Where a stage keeps its outputs. `fingerprint` is that of all that produces them, but for the item.

    `identities` tells the items of the source apart; without them an item is known by its number in the epoch.
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

    A stage without a `cache_plan` keeps nothing, whatever its `cache`: a probe, and `--no-cache`.
    """

    index: int = 0
    cache_plan: CachePlan | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """A stage with the stages fused into it, and the number of workers that run them.

    `input_segment` and `output_segment` differ only at an order point.
    """

    role: ProcessRole
    stages: tuple[StagePlan, ...]
    workers: int
    input_segment: int
    output_segment: int
    sends_chunks: bool = False  # several consecutive items in one packet: see `chunks`
    chunk_batch_size: int = 0  # the samples of a batch that is made of the chunks
    visible_devices: tuple[str, ...] | None = None  # CUDA_VISIBLE_DEVICES of each worker; None: inherited

    @property
    def first_stage(self) -> StagePlan:
        """The stage that the others are fused into. Its keys set up the process, but for `workers`."""
        return self.stages[0]

    @property
    def copies_all_input(self) -> bool:
        """Whether each item that arrives is copied, for a stage that changes it.

        A stage with a `when` that is alone in its process copies what matches, so that the rest passes by uncopied.
        """
        return self.first_stage.mutable and (self.first_stage.when is None or len(self.stages) > 1)

    @property
    def name(self) -> str:
        """The name of the first stage in the process."""
        return self.first_stage.name


@dataclass(frozen=True, kw_only=True)
class HopPlan:
    """The hop from one process to the next; `source` and `target` are process names.

    `large_in_pipe`: an item below the threshold that exceeds a packet goes through the pipe in pieces.
    `is_threshold_fixed`: the config sets the threshold.
    """

    source: str
    target: str
    mode: str
    threshold_bytes: int
    reason: str
    capacity_packets: int
    large_in_pipe: bool = False
    is_threshold_fixed: bool = False

    @property
    def rule(self) -> TransportRule:
        """The transport rule that the negotiator chose for the hop."""
        return TransportRule(self.mode, self.threshold_bytes, self.reason, self.large_in_pipe)

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
    max_writers: int | None = None  # workers that each sink may have, for the memory of their parts; None: any
    max_skipped: int | float | None = None  # items that may fail; a float is a share of the source's
    attach: bool = True  # other processes of the user may attach to the run
    consumer_name: str = "consumer"  # what takes the items: a loop, or sinks in the caller's process
    is_consumer_sink: bool = False

    @property
    def syntax(self) -> ConfigSyntax:
        """The form in which the pipeline was written; messages advise in it."""
        return self.processes[0].first_stage.syntax

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The names of all stages, the source first. `StagePlan.index` is an index into this tuple."""
        return tuple(stage.name for process in self.processes for stage in process.stages)


SINK_NAME = "sink"
"""The target name of the last hop."""
