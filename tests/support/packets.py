"""A start hook of workers that always share packets, whatever the machine's load: a slow machine would send singly."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from stagepipe.runtime.protocol.worker_spec import WorkerSpec
from stagepipe.runtime.worker.upkeep import PacketLimit
from stagepipe.testing.crash_points import arm_crash_points, worker_start_hook
from stagepipe.transport import small_items


class HoldingOutbox(small_items.Outbox):
    """Holds every entry back, however long the one before has taken: set as the `__class__` of an outbox."""

    hold_until_ns = property(lambda _: 1 << 62, lambda _, until_ns: None)


def hold_all(sender: Any) -> None:
    """Let a sender hold back whatever it can, until `flush`."""
    sender._outbox.__class__ = HoldingOutbox
    sender._outbox._late_writer.is_watching = True
    sender.limit_packet(10_000)


def always_packed(max_entries: int | None = None, crashes: str = "") -> AbstractContextManager[None]:
    """Workers hold items back as if all were made quickly, and die at `crashes`. `max_entries` replaces the limit."""
    return worker_start_hook(f"{__name__}:pack", f"{max_entries or 0} {crashes}")


def pack(spec: WorkerSpec) -> None:
    number, _, crashes = spec.start_hook_argument.partition(" ")
    small_items.Outbox.hold_until_ns = HoldingOutbox.hold_until_ns
    small_items._MAX_HELD_NS = 10**12
    if int(number):
        PacketLimit.compute_max_entries = lambda _: int(number)
    arm_crash_points(replace(spec, start_hook_argument=crashes))


class Pauses:
    """A stream of the times at which its items were made, with a pause after each."""

    def __init__(self, count: int, pause_s: float) -> None:
        self.count = count
        self.pause_s = pause_s

    def __iter__(self) -> Any:
        for _ in range(self.count):
            yield monotonic()
            sleep(self.pause_s)
