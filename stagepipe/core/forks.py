"""What a process owns is left alone by the children that it forks. In every process.

A forked child has copies of its parent's objects and descriptors, but none of its threads. If it closed a run, its
parent's workers would end; if it went on with an iteration, the two would take each other's items. So there is one hook
for all forks (`os.fork`, multiprocessing, the workers of a DataLoader): in the child, each owner abandons what it owns.

A child that user code forks while stagepipe calls it (a stage, a source, a sink) ends where it leaves that code.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from typing import Final, NoReturn, Protocol


class ProcessOwned(Protocol):
    """An object that belongs to the process that made it."""

    def abandon_in_child(self) -> None:
        """Let go of everything, without touching it. Called in a forked child, before any other code."""


class ThisProcess:
    """This process. `pid` is its number, at the price of an attribute: `os.getpid` is a call to the kernel."""

    def __init__(self) -> None:
        self.pid = os.getpid()


this_process: Final = ThisProcess()

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


def end_if_forked(owner_pid: int, place: str, error: BaseException | None = None) -> None:
    """End this process if it is a child that was forked by the user code that process `owner_pid` had called.

    To be called where that code has returned, or raised `error`. `place` names the code, as in "stage decode".
    """
    if this_process.pid != owner_pid:
        end_forked_child(owner_pid, place, error)


def end_forked_child(owner_pid: int, place: str, error: BaseException | None = None) -> NoReturn:
    """End this forked child of process `owner_pid`: as `sys.exit` asks, or with a warning and status 0 or 1.

    Nothing of the parent's is touched: no buffer is written a second time, no exit handler runs.
    """
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            status = error.code or 0
        else:
            sys.stderr.write(f"{error.code}\n")
            sys.stderr.flush()
        os._exit(status & 0xFF)
    try:
        how = "came back from it" if error is None else f"left it by {type(error).__name__}"
        logging.getLogger("stagepipe").warning(
            "%s: its code forked process %d, which %s and was ended: what process %d returns counts, and nothing of "
            "the child's; let a forked child call os._exit(0) where its work ends",
            *(place, this_process.pid, how, owner_pid),
            exc_info=error,
        )
    finally:
        os._exit(status)


class UserCode:
    """A context around a call of user code: a child that the code forks ends where it leaves the context."""

    def __init__(self, place: str) -> None:
        """`place` names the code, as in "stage decode". The context may be entered again and again."""
        self._place = place
        self._pid = this_process.pid

    def __enter__(self) -> None:
        """Call the code."""

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """End a forked child; in the process itself, do nothing."""
        end_if_forked(self._pid, self._place, error)


def _abandon_all() -> None:
    this_process.pid = os.getpid()
    owners = list(_owners)
    _owners.clear()
    try:
        for owner in owners:
            owner.abandon_in_child()
    finally:
        fork_lock.release()


os.register_at_fork(before=fork_lock.acquire, after_in_parent=fork_lock.release, after_in_child=_abandon_all)
