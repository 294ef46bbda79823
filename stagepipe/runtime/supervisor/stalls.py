"""Describes a stalled run: which workers are busy and which wait. Pure functions, used by the watchdog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagepipe.core import format_ns, join_names


@dataclass(frozen=True)
class Stall:
    """A run in which nothing has moved for `stalled_ns` and no worker is busy. `description` is for people."""

    description: str
    stalled_ns: int


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What a worker is doing. With `item` set and `item_age_ns` 0 it waits to send the item."""

    name: str
    is_stopped: bool = False
    starting_ns: int = 0
    item: str = ""
    item_age_ns: int = 0
    other_work_ns: int = 0  # busy for so long without a current item: collating a batch, rebuilding a stage

    @property
    def is_working(self) -> bool:
        """Whether it can make progress without any other process."""
        return (
            self.is_stopped
            or bool(self.starting_ns)
            or bool(self.item and self.item_age_ns)
            or bool(self.other_work_ns)
        )


def is_deadlocked(statuses: Sequence[WorkerStatus]) -> bool:
    """Whether every worker waits for another one."""
    return not any(status.is_working for status in statuses)


def describe_stall(statuses: Sequence[WorkerStatus], stalled_ns: int) -> str:
    """The text of the warning: the busy workers first, then those that wait to send an item, then the idle ones.

    >>> decode = WorkerStatus(name="decode/0", item="7", item_age_ns=12 * 10**9)
    >>> describe_stall([WorkerStatus(name="source/0"), decode, WorkerStatus(name="batch/0")], 10 * 10**9)
    'no item has moved for 10 s: decode/0 has been processing item 7 for 12 s; source/0 and batch/0 are waiting'
    """
    working_texts = [_describe_work(status) for status in statuses if status.is_working]
    waiting = [status for status in statuses if not status.is_working]
    blocked_texts = [
        f"{status.name} is waiting for room downstream to send item {status.item}" for status in waiting if status.item
    ]
    idle_names = list(dict.fromkeys(status.name for status in waiting if not status.item))  # a row may have several
    idle_text = f"{join_names(idle_names)} {'is' if len(idle_names) == 1 else 'are'} waiting" if idle_names else ""
    texts = [*(working_texts or ["no worker is busy"]), *blocked_texts, idle_text]
    return f"no item has moved for {format_ns(stalled_ns)}: " + "; ".join(filter(None, texts))


def _describe_work(status: WorkerStatus) -> str:
    if status.is_stopped:
        return f"{status.name} is stopped (SIGSTOP; `kill -CONT` resumes it)"
    if status.starting_ns:
        return f"{status.name} has been starting for {format_ns(status.starting_ns)}"
    if status.item:
        return f"{status.name} has been processing item {status.item} for {format_ns(status.item_age_ns)}"
    return f"{status.name} has been busy for {format_ns(status.other_work_ns)}"
