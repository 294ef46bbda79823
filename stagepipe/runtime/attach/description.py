"""What a run tells of itself to a process that attaches: no argument of a stage is part of it. Pure."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import msgspec

from stagepipe.plan import Plan, ProcessPlan, ProcessRole
from stagepipe.timing import BoardLayout


class ProcessDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A process: its stages by name, the rows of the user that they belong to, and the number of its workers.

    It makes one output of `items_per_output` inputs; 0: of as many as fit into a part of a sink.
    """

    stages: tuple[str, ...]
    rows: tuple[str, ...]
    workers: int
    kind: Literal["source", "stage", "sink"] = "stage"
    items_per_output: int = 1


class RunDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the processes in the order of the chain, what takes its items, and the layout of the board.

    A change of its fields takes another `stagepipe.timing.LAYOUT_VERSION`.
    """

    name: str
    processes: tuple[ProcessDescription, ...]
    memory_bytes: int
    layout: BoardLayout
    consumer: str = "consumer"
    is_consumer_sink: bool = False

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows of each process, the consumer last. A process belongs to the first of its rows."""
        return [*(process.rows for process in self.processes), (self.consumer,)]

    @property
    def hop_ends(self) -> list[tuple[str, str]]:
        """The rows at both ends of each hop; they are the same for one inside a source or a sink."""
        return [(before[-1], after[0]) for before, after in pairwise(self.rows)]


def describe_run(plan: Plan, layout: BoardLayout) -> RunDescription:
    """Return what a run of `plan` tells of itself."""
    next_processes = [*plan.processes[1:], plan.processes[-1]]
    processes = tuple(map(_describe_process, plan.processes, next_processes))
    is_commit = bool(plan.sinks) and all(sink.writes_parts for sink in plan.sinks) and processes[-1].kind == "sink"
    return RunDescription(
        name=plan.name,
        processes=processes,
        consumer=processes[-1].rows[-1] if is_commit else plan.consumer_name,
        is_consumer_sink=is_commit or plan.is_consumer_sink,
        memory_bytes=plan.memory_bytes,
        layout=layout,
    )


def _describe_process(process: ProcessPlan, following: ProcessPlan) -> ProcessDescription:
    is_sink = bool(process.first_stage.sink_path)
    makes_parts = is_sink and process.role is ProcessRole.ORDER_POINT
    rows = tuple(stage.part_of or stage.name for stage in process.stages)
    if makes_parts:  # for several sinks: it counts as the first of them
        rows = (following.first_stage.part_of or following.name,) * len(rows)
    return ProcessDescription(
        stages=tuple(stage.name for stage in process.stages),
        rows=rows,
        kind="source" if process.role is ProcessRole.SOURCE else "sink" if is_sink else "stage",
        workers=process.workers,
        items_per_output=0 if makes_parts else math.prod(stage.items_per_output for stage in process.stages),
    )
