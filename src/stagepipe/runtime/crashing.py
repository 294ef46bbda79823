"""Crash points: a worker that kills itself between two named steps of the protocol. For tests alone, in workers.

`STAGEPIPE_CRASH_AT="send.after:17:decode/0 seek.before:1:*"` kills worker 0 of `decode` with SIGKILL when it has
written its 17th packet, and every worker when it is about to enter its first seek: point, passage, process. Only the
first worker at a place does so, or all that come after it would die as well; a fourth part names another life (`:1`
the second worker, `:*` all). Nothing of this is imported, and nothing is called, where the variable is not set.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, NamedTuple

from stagepipe.runtime.chain import Chain
from stagepipe.runtime.control import Control
from stagepipe.runtime.gate import Gate, Meter
from stagepipe.runtime.launch import Launch
from stagepipe.runtime.messages import Ready
from stagepipe.runtime.ordering import OrderRole
from stagepipe.runtime.outlet import HopOut
from stagepipe.runtime.roles import SourceRole, StageRole
from stagepipe.runtime.stage import Stage
from stagepipe.runtime.unordered import BehindRole, FirstRole
from stagepipe.transport import Memory, Receiver, Reorder, Sender, sender
from stagepipe.transport.packer import Packer

VARIABLE: Final = "STAGEPIPE_CRASH_AT"


class Point(NamedTuple):
    """A method, of one class or several, before or after whose call a worker may die."""

    owners: tuple[Any, ...]
    method: str
    after: bool
    when: Callable[[tuple[Any, ...]], bool] = lambda _: True


def _is_ready(arguments: tuple[Any, ...]) -> bool:
    return isinstance(arguments[1], Ready)


def _both(name: str, owners: tuple[Any, ...], method: str) -> dict[str, Point]:
    return {f"{name}.before": Point(owners, method, after=False), f"{name}.after": Point(owners, method, after=True)}


_ROLES = (SourceRole, StageRole, OrderRole)

POINTS: Final[dict[str, Point]] = {
    "read.after": Point((Receiver,), "_read", after=True),  # a packet is in hand, and nobody else has it
    "open.after": Point((Receiver,), "_open", after=True),  # its views are made
    **_both("call", (Stage,), "call"),
    **_both("call_many", (Chain,), "push_many"),
    **_both("take", (Memory,), "take"),
    "copy.after": Point((Packer,), "pack", after=True),
    **_both("send", (Sender,), "_write"),
    "fragment.before": Point((sender,), "fragments", after=False),
    **_both("release", (Memory,), "_pay"),
    **_both("retain", (Memory,), "pass_on"),
    "collect.after": Point((Memory,), "collect", after=True),
    "add.after": Point((Reorder,), "add", after=True),
    **_both("group", (OrderRole,), "_flushed"),
    **_both("consumed", (Meter,), "flush"),
    "admit.after": Point((Gate,), "wait", after=True),
    **_both("seek", (*_ROLES, FirstRole, BehindRole), "enter"),
    "ready.before": Point((Control,), "send", after=False, when=_is_ready),
    "ready.after": Point((Control,), "send", after=True, when=_is_ready),
    **_both("close", (HopOut,), "close"),
    **_both("dropped", (HopOut,), "dropped"),
    **_both("end", (HopOut,), "end"),
}
"""By name, what a worker may die at."""


def arm(launch: Launch) -> None:
    """Set the points that the variable names for this worker. ValueError for one that there is not."""
    process, life = f"{launch.plan.name}/{launch.worker}", getattr(launch, "life", 0)
    for entry in os.environ[VARIABLE].split():
        name, passage, which, *lives = entry.split(":")
        if name not in POINTS:
            raise ValueError(f"{VARIABLE}: there is no point {name!r}, only {', '.join(sorted(POINTS))}")
        if which in {"*", process} and (lives or ["0"])[0] in {"*", str(life)}:
            _set(POINTS[name], _countdown(int(passage)))


def _countdown(passage: int) -> Callable[[], None]:
    left = passage

    def pass_by() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_by


def _set(point: Point, pass_by: Callable[[], None]) -> None:
    for owner in point.owners:
        if point.method in vars(owner):  # what is inherited is set where it comes from
            original = getattr(owner, point.method)
            wrapped = _pieces if point.method == "fragments" else _wrapped
            setattr(owner, point.method, wrapped(original, point, pass_by))


def _wrapped(original: Callable[..., Any], point: Point, pass_by: Callable[[], None]) -> Callable[..., Any]:
    @wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        counts = point.when(arguments)
        if counts and not point.after:
            pass_by()
        result = original(*arguments, **keywords)
        if counts and point.after:
            pass_by()
        return result

    return call


def _pieces(original: Callable[..., Iterator[Any]], point: Point, pass_by: Callable[[], None]) -> Callable[..., Any]:
    """Each piece is a passage."""
    del point

    def iterate(*arguments: Any) -> Iterator[Any]:
        for piece in original(*arguments):
            pass_by()
            yield piece

    return iterate
