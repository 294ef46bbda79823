"""What will run: processes, hops and stretches, as frozen values: this layer's output, the engine's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

from stagepipe.config import BatchSpec, Target
from stagepipe.plan.curves import Curves
from stagepipe.plan.negotiator import Choice
from stagepipe.plan.shard import WHOLE, Shard


class Role(Enum):
    """What a process does with items."""

    SOURCE = "source"
    STAGE = "stage"
    ORDER_POINT = "order point"


@dataclass(frozen=True)
class StagePlan:
    """One stage (or the source) inside a process."""

    name: str
    target: Target
    field: str | Mapping[str, str] | None = None
    as_: Literal["numpy", "tensor", "pil"] | None = None
    batch: BatchSpec | None = None
    mutable: bool = False
    reseed: bool = True
    timeout_ns: int | None = None
    start_timeout_ns: int = 600_000_000_000
    retries: int | None = None
    on_error: Literal["fail", "skip"] = "fail"
    stateful: bool = False
    number: int = 0  # among all stages of the plan, the source's being 0


@dataclass(frozen=True)
class ProcessPlan:
    """A stage with all that is fused behind it, and how many workers run it.

    `reads` and `feeds` are the stretches of its input and of its output; they differ at an order point.
    """

    role: Role
    stages: tuple[StagePlan, ...]
    workers: int
    reads: int
    feeds: int
    threads: int | None = None
    cpus: tuple[int, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] | None = None  # the GPU that each worker sees; None: as its surroundings have it

    @property
    def name(self) -> str:
        """The name of its first stage."""
        return self.stages[0].name


@dataclass(frozen=True)
class HopPlan:
    """From one process to the next, known by their names.

    `large_in_pipe`: what does not fit a packet goes through the pipe in pieces, below the threshold; `fixed`: the
    threshold is the user's.
    """

    source: str
    target: str
    mode: str
    threshold_bytes: int
    reason: str
    packets: int
    large_in_pipe: bool = False
    fixed: bool = False

    @property
    def choice(self) -> Choice:
        """The hop's rule, as the negotiator has it."""
        return Choice(self.mode, self.threshold_bytes, self.reason, self.large_in_pipe)

    @property
    def learns(self) -> bool:
        """Whether its rule may change while it runs: not forced, and no threshold of the user's."""
        return self.mode == "auto" and not self.fixed


@dataclass(frozen=True)
class StretchPlan:
    """What lies between two order points: at most `window` items of its feeder are under way in it.

    `roomy_window` applies while they take little memory (`window: auto`), so that small items amortise wake-ups.
    """

    window: int
    roomy_window: int


@dataclass(frozen=True)
class Plan:
    """A run, before anything is started. `processes` are in the chain's order; the sink is the caller's process."""

    name: str
    processes: tuple[ProcessPlan, ...]
    hops: tuple[HopPlan, ...]
    stretches: tuple[StretchPlan, ...]
    memory_bytes: int
    seed: int
    any_order: bool
    curves: Curves
    cpus: int
    config_dir: Path | None = None
    sink: Target | None = None
    limit: int | None = None
    config_sha256: str = ""
    source_sha256: str = ""
    keep_pages: bool = False
    shard: Shard = WHOLE
    probe: bool = False  # its workers tell of the first items that they send
    max_restarts: int = 10
    max_skipped: int | float | None = None  # items that may fail and be skipped; a share of the source's if a float

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The names of all stages, the source's first: what a stage's number counts in."""
        return tuple(stage.name for process in self.processes for stage in process.stages)


SINK = "sink"
"""The name of the last hop's target."""
SOURCE = "source"
"""The name of the source, as a stage."""
