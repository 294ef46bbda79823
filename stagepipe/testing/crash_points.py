"""Crash points: a worker kills itself between two named steps of the protocol. For tests only.

A specification is a list of `point:passage:process`, separated by spaces. For example, with
`send.after:17:decode/0 seek.before:1:*`, worker 0 of `decode` dies of SIGKILL after it has written its 17th packet, and
every worker dies before it enters its first seek. By default only the first worker in a slot dies, because otherwise
its successors would die too. A fourth part selects another incarnation: `:1` the second worker, `:*` all of them.

`crash_workers_at` runs in the caller's process. It sets the start hook of the workers to `arm_crash_points`, which
replaces methods inside the worker. Workers without the hook do not import this module. `worker_start_hook` sets any
function as the hook.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, NamedTuple

from stagepipe.runtime import WORKER_START_HOOK
from stagepipe.runtime.execution.chain import StageChain
from stagepipe.runtime.execution.grouping import OrderedGrouping
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.runtime.flow import AdmissionController, ProgressPublisher
from stagepipe.runtime.protocol.messages import ReadyEvent
from stagepipe.runtime.protocol.worker_spec import WorkerSpec
from stagepipe.runtime.worker.control_client import ControlClient
from stagepipe.runtime.worker.hop_output import HopOutput
from stagepipe.runtime.worker.roles import OrderPointRole, SourceRole, StageRole
from stagepipe.transport import receiver, sender
from stagepipe.transport.memory import ReleasePipes, SharedMemoryPool
from stagepipe.transport.packing import Packer
from stagepipe.transport.receiver import Receiver
from stagepipe.transport.reorder import ReorderBuffer
from stagepipe.transport.sender import Sender


@contextlib.contextmanager
def worker_start_hook(target: str, argument: str = "") -> Iterator[None]:
    """Make each worker that starts inside this context call `target` once, before it connects to the supervisor.

    `target` is "package.module:function" and must be importable in the worker. It is called with the worker's
    `WorkerSpec`; `argument` is its `start_hook_argument`. Successors of dead workers call it too. An error in `target`
    ends the worker. Contexts nest: the inner hook replaces the outer one.

    >>> with worker_start_hook("my_tests.hooks:print_spec", "verbose"):
    ...     pass  # run a pipeline here
    """
    previous_target, previous_argument = WORKER_START_HOOK.target, WORKER_START_HOOK.argument
    WORKER_START_HOOK.target = target
    WORKER_START_HOOK.argument = argument
    try:
        yield
    finally:
        WORKER_START_HOOK.target = previous_target
        WORKER_START_HOOK.argument = previous_argument


class CrashPoint(NamedTuple):
    """A method of one or more owners (classes or a module). The worker dies before or after a call to it."""

    owners: tuple[Any, ...]
    method: str
    is_after: bool
    condition: Callable[[tuple[Any, ...]], bool] = lambda _: True


def _is_ready_event(arguments: tuple[Any, ...]) -> bool:
    return isinstance(arguments[1], ReadyEvent)


def _before_and_after(name: str, owners: tuple[Any, ...], method: str) -> dict[str, CrashPoint]:
    return {
        f"{name}.before": CrashPoint(owners, method, is_after=False),
        f"{name}.after": CrashPoint(owners, method, is_after=True),
    }


_ROLE_TYPES = (SourceRole, StageRole, OrderPointRole)

CRASH_POINTS: Final[dict[str, CrashPoint]] = {
    "read.after": CrashPoint((receiver,), "unpack", is_after=True),  # this process has the only copy of a packet
    "open.after": CrashPoint((Receiver,), "receive", is_after=True),  # views of the packet's arrays exist
    **_before_and_after("call", (StageRunner,), "call"),
    **_before_and_after("call_many", (StageChain,), "push_batch"),
    **_before_and_after("take", (SharedMemoryPool,), "allocate"),
    "copy.after": CrashPoint((Packer,), "pack", is_after=True),
    "pack.after": CrashPoint((Packer,), "pack_entry", is_after=True),
    "hold.after": CrashPoint((HopOutput,), "add", is_after=True),  # only this process may have the items
    **_before_and_after("send", (Sender,), "_write_packet"),
    "fragment.before": CrashPoint((sender,), "split_into_fragments", is_after=False),
    **_before_and_after("release", (ReleasePipes,), "_send_to"),
    **_before_and_after("retain", (SharedMemoryPool,), "forward_lease"),
    "collect.after": CrashPoint((SharedMemoryPool,), "collect_releases", is_after=True),
    "add.after": CrashPoint((ReorderBuffer,), "add", is_after=True),
    **_before_and_after("group", (OrderedGrouping,), "_flush_group"),
    **_before_and_after("consumed", (ProgressPublisher,), "flush"),
    "admit.after": CrashPoint((AdmissionController,), "wait_until_admitted", is_after=True),
    **_before_and_after("seek", _ROLE_TYPES, "apply_seek"),
    "ready.before": CrashPoint((ControlClient,), "send", is_after=False, condition=_is_ready_event),
    "ready.after": CrashPoint((ControlClient,), "send", is_after=True, condition=_is_ready_event),
    **_before_and_after("close", (HopOutput,), "send_close"),
    **_before_and_after("dropped", (HopOutput,), "send_tombstone"),
    **_before_and_after("end", (HopOutput,), "send_end"),
}
"""The crash points by name."""


class _CrashRule(NamedTuple):
    """One entry of a specification."""

    point_name: str
    passage: int
    process: str
    incarnation: str

    def matches(self, spec: WorkerSpec) -> bool:
        """Return whether the rule is for this worker."""
        name = f"{spec.plan.name}/{spec.worker}"
        return self.process in {"*", name} and self.incarnation in {"*", str(spec.incarnation)}


def _parse_rule(entry: str) -> _CrashRule:
    name, passage, process, *incarnations = entry.split(":")
    if name not in CRASH_POINTS:
        raise ValueError(f"{entry}: there is no crash point {name!r}; use one of {', '.join(sorted(CRASH_POINTS))}")
    return _CrashRule(name, int(passage), process, incarnations[0] if incarnations else "0")


@contextlib.contextmanager
def crash_workers_at(specification: str) -> Iterator[None]:
    """Make workers that start inside this context die at the crash points of `specification`.

    Raises ValueError for a crash point that does not exist.

    >>> with crash_workers_at("send.after:17:decode/0"):
    ...     pass  # run a pipeline here
    """
    for entry in specification.split():
        _parse_rule(entry)
    with worker_start_hook(f"{__name__}:{arm_crash_points.__name__}", specification):
        yield


def arm_crash_points(spec: WorkerSpec) -> None:
    """Arm this worker's crash points from `spec.start_hook_argument`. This is the start hook of the workers."""
    for entry in spec.start_hook_argument.split():
        rule = _parse_rule(entry)
        if rule.matches(spec):
            _patch_methods(CRASH_POINTS[rule.point_name], _make_countdown(rule.passage))


def _make_countdown(passage_count: int) -> Callable[[], None]:
    remaining = passage_count

    def count_passage() -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            os.kill(os.getpid(), signal.SIGKILL)

    return count_passage


def find_defining_owners(point: CrashPoint) -> list[Any]:
    """Return the owners that define the method themselves; the others inherit it from them.

    Raises AttributeError if no owner defines the method, or if one does not have it: then its name is outdated.
    """
    without = [owner.__name__ for owner in point.owners if not hasattr(owner, point.method)]
    defining = [owner for owner in point.owners if point.method in vars(owner)]
    if without or not defining:
        names = ", ".join(without or [owner.__name__ for owner in point.owners])
        raise AttributeError(f"crash point: {names} does not define `{point.method}`; correct its name in CRASH_POINTS")
    return defining


def _patch_methods(point: CrashPoint, count_passage: Callable[[], None]) -> None:
    wrap = _wrap_fragments if point.method == "split_into_fragments" else _wrap_call
    for owner in find_defining_owners(point):
        setattr(owner, point.method, wrap(getattr(owner, point.method), point, count_passage))


def _wrap_call(
    original: Callable[..., Any], point: CrashPoint, count_passage: Callable[[], None]
) -> Callable[..., Any]:
    @wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        is_counted = point.condition(arguments)
        if is_counted and not point.is_after:
            count_passage()
        result = original(*arguments, **keywords)
        if is_counted and point.is_after:
            count_passage()
        return result

    return call


def _wrap_fragments(
    original: Callable[..., Iterator[Any]], point: CrashPoint, count_passage: Callable[[], None]
) -> Callable[..., Any]:
    """Wrap the generator of fragments. Each fragment is a passage."""
    del point

    def iterate(*arguments: Any) -> Iterator[Any]:
        for fragment in original(*arguments):
            count_passage()
            yield fragment

    return iterate
