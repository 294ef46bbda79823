"""Who waits for whom, in words, where nothing moves. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagepipe.core.units import format_ns


@dataclass(frozen=True)
class Doing:
    """What a worker is at: starting for so long, stopped, at an item for so long (0: it waits to send it), or idle."""

    name: str
    stopped: bool = False
    starting_ns: int = 0
    item: str = ""
    at_ns: int = 0
    quiet_ns: int = 0  # at work on no item (a batch is collated, a stage built anew) for so long

    @property
    def works(self) -> bool:
        """Whether something can still come of it without anybody else."""
        return self.stopped or bool(self.starting_ns) or bool(self.item and self.at_ns) or bool(self.quiet_ns)


def nobody_works(doing: Sequence[Doing]) -> bool:
    """Whether all wait, each for another."""
    return not any(each.works for each in doing)


def diagnosis(doing: Sequence[Doing], still_ns: int) -> str:
    """The sentence.

    >>> diagnosis([Doing("source/0"), Doing("decode/0", item="7", at_ns=12 * 10**9), Doing("batch/0")], 10 * 10**9)
    'no item has moved for 10 s: decode/0 has been at item 7 for 12 s; source/0 and batch/0 wait'
    """
    said = [_said(each) for each in doing if each.works]
    waiters = [each for each in doing if not each.works]
    blocked = [f"{each.name} waits for room behind it, for item {each.item}" for each in waiters if each.item]
    idle = [each.name for each in waiters if not each.item]
    waiting = f"{_listed(idle)} wait{'s' if len(idle) == 1 else ''}" if idle else ""
    if not said:
        said = ["no worker is at work"]
    return f"no item has moved for {format_ns(still_ns)}: " + "; ".join(filter(None, [*said, *blocked, waiting]))


def _said(each: Doing) -> str:
    if each.stopped:
        return f"{each.name} is stopped (SIGSTOP; `kill -CONT` lets it go on)"
    if each.starting_ns:
        return f"{each.name} has been starting for {format_ns(each.starting_ns)}"
    if each.item:
        return f"{each.name} has been at item {each.item} for {format_ns(each.at_ns)}"
    return f"{each.name} has been at work for {format_ns(each.quiet_ns)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
