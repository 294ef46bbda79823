"""Shared memory that is too small for what is under way: half as much is let in, and at last it is said who has it."""

from __future__ import annotations

from collections.abc import Iterable

from stagepipe.core import RunError
from stagepipe.core.units import format_bytes
from stagepipe.plan import Plan
from stagepipe.runtime.messages import Full
from stagepipe.runtime.process import WorkerProcess
from stagepipe.timing import Board, Word


class Windows:
    """How many items each stretch lets in, and how many while they take little memory."""

    def __init__(self, plan: Plan) -> None:
        """As the plan has it."""
        self.now = [stretch.window for stretch in plan.stretches]
        self.roomy = [stretch.roomy_window for stretch in plan.stretches]

    def halve(self) -> bool:
        """Let in half as many at a time; False if it is one already."""
        if max(self.now + self.roomy) == 1:
            return False
        self.now = [max(1, window // 2) for window in self.now]
        self.roomy = list(self.now)
        return True


def full_error(full: Full, plan: Plan, board: Board, workers: Iterable[WorkerProcess]) -> RunError:
    """Why the run ends: an item does not fit, although it is the only one."""
    holder = _holder(full, plan, board, workers)
    return RunError(
        f"stage {full.stage}, worker {full.worker}, item {full.item or '?'}: {full.error}, and only one item is "
        f"under way{holder}; raise `memory` (now {format_bytes(plan.memory_bytes)}), or let the "
        "stage give less",
        stage=full.stage,
        worker=full.worker,
        item=full.item,
    )


def _holder(full: Full, plan: Plan, board: Board, workers: Iterable[WorkerProcess]) -> str:
    """Who keeps most of the shared memory, in words; empty where there is not much in use."""
    held = {worker.name: board.region(worker.place.number)[Word.HELD_BYTES] for worker in workers}
    at_fault = next(worker.name for worker in workers if worker.place.number == full.process)
    held[at_fault] = max(held[at_fault], full.held_bytes)
    held["the caller"] = board.held_bytes()
    name = max(held, key=held.__getitem__)
    if held[name] >= plan.memory_bytes // 8:
        return f"; {name} holds {format_bytes(held[name])} of it"
    unread = board.region(full.process)[Word.LIVE_BYTES]
    return f"; {format_bytes(unread)} of it are sent and not read yet" if unread >= plan.memory_bytes // 8 else ""
