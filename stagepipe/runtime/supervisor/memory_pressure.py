"""Too little shared memory: a warning when `memory` holds fewer items than the window, and the error when it is full.

In the caller's process. The monitor runs on the supervisor's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from stagepipe.core import RunError, format_bytes
from stagepipe.plan import Plan
from stagepipe.runtime.flow import IN_FLIGHT_MEMORY_FRACTION
from stagepipe.runtime.protocol import ArenaFullEvent
from stagepipe.runtime.supervisor.run_resources import WorkerSlot
from stagepipe.timing import Board, ProcessCounter

_log = logging.getLogger("stagepipe")


class MemoryPressureMonitor:
    """Warns once per run about memory pressure that admission controllers have published on the board."""

    def __init__(self, plan: Plan, board: Board) -> None:
        self._plan = plan
        self._board = board
        self._has_warned = False

    def check(self) -> None:
        """Warn about the first segment whose window does not fit into `memory`."""
        for segment_index, segment in enumerate(self._plan.segments):
            pressure = None if self._has_warned else self._board.read_memory_pressure(segment_index)
            if pressure is not None:
                self._has_warned = True
                _log.warning("%s", describe_memory_pressure(*pressure, segment.window, self._plan))


def compute_wanted_bytes(item_bytes: int, window_items: int) -> int:
    """The `memory` that holds a whole window, in bytes: whole MiB."""
    return -int(-window_items * item_bytes / IN_FLIGHT_MEMORY_FRACTION // (1 << 20)) << 20


def describe_memory_pressure(item_bytes: int, fitting_items: int, window_items: int, plan: Plan) -> str:
    """The text of the warning: how much `memory` the window needs."""
    wanted_mib = compute_wanted_bytes(item_bytes, window_items) >> 20
    return (
        f"each item in flight takes about {format_bytes(item_bytes)} of shared memory, so only {fitting_items} of a "
        f"window of {window_items} fit in `memory` ({format_bytes(plan.memory_bytes)}) and workers may wait; set "
        f"`{plan.syntax.format_setting('memory', f'{wanted_mib}MiB')}` or more to fit the window"
    )


def make_arena_full_error(event: ArenaFullEvent, plan: Plan, board: Board, slots: Iterable[WorkerSlot]) -> RunError:
    """The error that ends the run: an item does not fit into shared memory even as the only one in flight."""
    holder = _describe_largest_holder(event, plan, board, slots)
    return RunError(
        f"stage {event.stage}, worker {event.worker}, item {event.item or '?'}: {event.error}, and only one item is "
        f"in flight{holder}; raise `memory` (now {format_bytes(plan.memory_bytes)}) or make the stage return less",
        stage=event.stage,
        worker=event.worker,
        item=event.item,
    )


def _describe_largest_holder(event: ArenaFullEvent, plan: Plan, board: Board, slots: Iterable[WorkerSlot]) -> str:
    """Which process holds most of the shared memory; "" if none holds an eighth of it."""
    held_bytes = {slot.name: board.region(slot.process_index)[ProcessCounter.HELD_BYTES] for slot in slots}
    sender_name = next(slot.name for slot in slots if slot.process_index == event.process)
    held_bytes[sender_name] = max(held_bytes[sender_name], event.held_bytes)
    held_bytes["the caller"] = board.consumer_held_bytes()
    name = max(held_bytes, key=held_bytes.__getitem__)
    if held_bytes[name] >= plan.memory_bytes // 8:
        return f"; {name} holds {format_bytes(held_bytes[name])} of it"
    unread_bytes = board.region(event.process)[ProcessCounter.LIVE_BYTES]
    if unread_bytes >= plan.memory_bytes // 8:
        return f"; {format_bytes(unread_bytes)} of it is sent but not read yet"
    return ""
