"""What a process owns is left alone by the children that it forks. In every process.

A forked child has copies of its parent's objects and descriptors, but none of its threads. If it closed a run, its
parent's workers would end; if it went on with an iteration, the two would take each other's items. So there is one hook
for all forks (`os.fork`, multiprocessing, the workers of a DataLoader): in the child, each owner abandons what it owns.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final, Protocol


class ProcessOwned(Protocol):
    """An object that belongs to the process that made it."""

    def abandon_in_child(self) -> None:
        """Let go of everything, without touching it. Called in a forked child, before any other code."""


fork_lock: Final = threading.RLock()
"""Forks wait for it. Held while a descriptor exists that no owner knows yet."""

_owners: Final[weakref.WeakSet[ProcessOwned]] = weakref.WeakSet()
_abandoned: Final[list[object]] = []


def format_owner_message(name: str, owner_pid: int) -> str:
    """Return why a forked child cannot use what process `owner_pid` owns, and what to do.

    >>> format_owner_message("pipeline", 17)
    'this pipeline belongs to process 17, which forked this one; make a new one in the child'
    """
    return f"this {name} belongs to process {owner_pid}, which forked this one; make a new one in the child"


def register_owner(owner: ProcessOwned) -> None:
    """Call `owner.abandon_in_child()` in each child that this process forks while `owner` lives."""
    _owners.add(owner)


def keep_until_exit(abandoned: object) -> None:
    """Keep an abandoned object, so that no destructor runs in the child."""
    _abandoned.append(abandoned)


def _abandon_all() -> None:
    owners = list(_owners)
    _owners.clear()
    try:
        for owner in owners:
            owner.abandon_in_child()
    finally:
        fork_lock.release()


os.register_at_fork(before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=_abandon_all)
