"""What a run tells of itself to a process that attaches: no argument of a stage is part of it. Pure."""

from __future__ import annotations

import msgspec

from stagepipe.plan import Plan
from stagepipe.timing import BoardLayout


class ProcessDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of a process, by name, and the number of its workers."""

    stages: tuple[str, ...]
    workers: int


class RunDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the processes in the order of the chain, without the consumer, and the layout of the board.

    A change of its fields takes another `stagepipe.timing.LAYOUT_VERSION`.
    """

    name: str
    processes: tuple[ProcessDescription, ...]
    memory_bytes: int
    layout: BoardLayout


def describe_run(plan: Plan, layout: BoardLayout) -> RunDescription:
    """Return what a run of `plan` tells of itself."""
    return RunDescription(
        name=plan.name,
        processes=tuple(
            ProcessDescription(stages=tuple(stage.name for stage in process.stages), workers=process.workers)
            for process in plan.processes
        ),
        memory_bytes=plan.memory_bytes,
        layout=layout,
    )
