"""The restarts of a run: which are due, and how much time each death or stall has cost. In the caller's process.

The recovery coordinator changes it with its lock held; other threads only read.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns

from stagepipe.runtime.supervisor.restart_policy import WorkerDeath
from stagepipe.runtime.supervisor.run_resources import WorkerSlot
from stagepipe.runtime.supervisor.stalls import Stall


@dataclass
class WorkerRestart:
    """A death that leads to a restart. `lost_ns`: from the death to the next delivered item; 0 until there is one."""

    death: WorkerDeath
    slot: WorkerSlot
    due_ns: int
    lost_ns: int = 0


@dataclass
class StallRestart:
    """A stall that was ended by a seek; no worker died. `lost_ns`: from its first moment to the next delivered item."""

    stall: Stall
    began_at_ns: int
    lost_ns: int = 0


class Restarts:
    """The restarts of a run, oldest first, and those among them that are not due yet."""

    def __init__(self) -> None:
        self.history: list[WorkerRestart] = []
        self.stalls: list[StallRestart] = []
        self._pending: list[WorkerRestart] = []

    def schedule(self, death: WorkerDeath, slot: WorkerSlot, delay_s: float) -> None:
        """Restart the worker of `slot`, `delay_s` after its death."""
        restart = WorkerRestart(death, slot, death.died_at_ns + int(delay_s * 1e9))
        self.history.append(restart)
        self._pending.append(restart)

    def record_stall(self, stall: Stall) -> None:
        """All processes go on from the last delivered item, to end a stall."""
        self.stalls.append(StallRestart(stall, perf_counter_ns() - stall.stalled_ns))

    def take_due(self) -> list[WorkerRestart]:
        """Remove the restarts that are due from the pending ones, and return them."""
        now_ns = perf_counter_ns()
        due = [restart for restart in self._pending if restart.due_ns <= now_ns]
        self._pending = [restart for restart in self._pending if restart.due_ns > now_ns]
        return due

    def limit_wait_s(self, max_wait_s: float) -> float:
        """`max_wait_s`, or less if a restart is due before."""
        now_ns = perf_counter_ns()
        return max(min([max_wait_s, *((restart.due_ns - now_ns) / 1e9 for restart in self._pending)]), 0.0)

    @property
    def awaits_delivery(self) -> bool:
        """Whether no item has been delivered since the last death."""
        return bool(self.history) and not self.history[-1].lost_ns

    def record_delivery(self) -> None:
        """An item was delivered: the run has recovered from all deaths so far."""
        now_ns = perf_counter_ns()
        for restart in self.history:
            restart.lost_ns = restart.lost_ns or now_ns - restart.death.died_at_ns
        for restart in self.stalls:
            restart.lost_ns = restart.lost_ns or now_ns - restart.began_at_ns
