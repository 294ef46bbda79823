"""A start hook of workers whose messages hold a given number of items, whatever these cost."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

from stagepipe.runtime.protocol.worker_spec import WorkerSpec
from stagepipe.runtime.worker.upkeep import MessageLimit
from stagepipe.testing.crash_points import arm_crash_points, worker_start_hook


def hold_all(sender: Any) -> None:
    """Let a sender hold back whatever it can, until `flush`."""
    sender.limit_message(10_000)


def always_packed(max_entries: int | None = None, crashes: str = "") -> AbstractContextManager[None]:
    """Workers die at `crashes`. `max_entries` replaces the limit on the items of a message."""
    return worker_start_hook(f"{__name__}:pack", f"{max_entries or 0} {crashes}")


def pack(spec: WorkerSpec) -> None:
    number, _, crashes = spec.start_hook_argument.partition(" ")
    if int(number):
        MessageLimit.compute_max_items = lambda _: int(number)
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
