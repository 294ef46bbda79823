"""What the supervisor knows and does about deaths: seen, judged, mended. In its process, under its lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter_ns

from stagepipe.core import Cursor, Key, RunError
from stagepipe.core.cgroup import out_of_memory_kills
from stagepipe.plan import Plan
from stagepipe.runtime.eras import Eras
from stagepipe.runtime.mending import Death, Fail, Mending, Restart
from stagepipe.runtime.process import WorkerProcess
from stagepipe.runtime.resources import Resources, WorkerPlace
from stagepipe.runtime.stage import item_text
from stagepipe.timing import Board, State, Word

_STUCK = 2
"""How often a run in which nothing moves is begun again before it is given up."""


@dataclass
class Restarted:
    """A death that is being mended. `lost_ns`: from the death to the next item delivered; 0 until there is one."""

    death: Death
    lost_ns: int = 0


class Recovery:
    """The deaths of a run. `broken` says that one waits for a seek: the consumer has to ask for it."""

    def __init__(self, plan: Plan, resources: Resources, board: Board) -> None:
        """No one has died."""
        stateful = next((stage.name for process in plan.processes for stage in process.stages if stage.stateful), "")
        self._plan, self._board = plan, board
        self._mending = Mending(plan.max_restarts, stateful)
        self._processes = [*(place.number for place in resources.places), resources.sink_number]
        self.eras = Eras(plan.memory_bytes, resources.arenas, board)
        self.broken = False
        self._stuck = 0
        self._memory_kills = out_of_memory_kills() or 0
        self.restarts: list[Restarted] = []
        self._due: list[tuple[int, WorkerPlace, int]] = []
        self._poison: dict[tuple[int, str, Key], tuple[str, int]] = {}
        self._alone: set[tuple[int, str, int, int]] = set()

    def died(self, worker: WorkerProcess, epoch: int) -> RunError | None:
        """What was left of a worker is cleared away; the error that ends the run, or None if it will be mended."""
        now = perf_counter_ns()
        death = self._seen(worker, epoch, now)
        verdict = self._mending.decide(death)
        if isinstance(verdict, Fail):
            return RunError(
                verdict.message, stage=death.stage.name, worker=death.worker, item=death.item, trace=death.trace
            )
        self._clear(worker.place.number)
        self._note(death, verdict)
        self.broken = True
        self.restarts.append(Restarted(death))
        self._due.append((now + int(verdict.after_s * 1e9), worker.place, now))
        return None

    def _seen(self, worker: WorkerProcess, epoch: int, now: int) -> Death:
        place, region = worker.place, self._board.region(worker.place.number)
        key = region.key
        last = region[Word.AT_LAST]
        was_ready = worker.ready or region[Word.STATE] != State.STARTING  # what it said last may not have arrived
        return Death(
            stage=place.plan.stages[min(region[Word.AT_STAGE], len(place.plan.stages) - 1) if key else 0],
            worker=place.worker,
            place=place.number,
            pid=worker.pid,
            cause=worker.cause(out_of_memory=self._out_of_memory()),
            at_ns=now,
            epoch=epoch,
            key=key,
            item=item_text(self._plan.shard, key),
            items=max(last - key[0], 2) if key and last else 1,
            lived_ns=now - (worker.ready_ns or now) if was_ready else None,
            fault=worker.faulted,
            killed=worker.was_killed,
            trace=worker.last_words(),
        )

    def _out_of_memory(self) -> bool:
        """Whether the kernel has killed a process for it since the last time."""
        before, self._memory_kills = self._memory_kills, out_of_memory_kills() or 0
        return self._memory_kills > before

    def _clear(self, number: int) -> None:
        region = self._board.region(number)
        self.eras.begin(self._board.live_bytes() - self._board.past_bytes)
        self.eras.left(number)
        region.at(())
        region[Word.LIVE_BYTES] = 0
        region[Word.STATE] = State.STARTING

    def _note(self, death: Death, verdict: Restart) -> None:
        if verdict.poison:
            several = f"it has killed {verdict.poison} workers, the last of which"
            why = f"{'its worker' if verdict.poison == 1 else several} {death.cause}"
            self._poison[death.epoch, death.stage.name, death.key] = why, verdict.poison
        if verdict.alone:
            first = death.key[0]
            self._alone.add((death.epoch, death.stage.name, first, first + death.items - 1))

    def stuck(self, diagnosis: str) -> RunError | None:
        """Nothing moves: a seek may mend it; the error that ends the run if it did not before."""
        self._stuck += 1
        if self._stuck > _STUCK:
            return RunError(f"{diagnosis}; it was begun again from the last delivered item {_STUCK} times, in vain")
        self.broken = True
        return None

    # ------------------------------------------------------------------ what the next seek imposes

    def imposed(self, epoch: int, cursors: Iterable[Cursor]) -> list[list[object]]:
        """What is not tried in this epoch: what has killed too many, and the skips that belong to the cursors."""
        skips = {(stage, key) for cursor in cursors for stage, key in cursor.skips}
        imposed: list[list[object]] = [[stage, list(key)] for stage, key in sorted(skips)]
        for (at, stage, key), why in sorted(self._poison.items()):
            if at == epoch:
                imposed.append([stage, list(key), *why])
        return imposed

    def alone(self, epoch: int) -> list[tuple[str, int, int]]:
        """The items that are tried one by one: stage, first and last item."""
        return sorted((stage, first, last) for at, stage, first, last in self._alone if at == epoch)

    # ------------------------------------------------------------------ on the way back

    def due(self) -> list[tuple[WorkerPlace, int]]:
        """The places where a successor is to be started now, and when the worker before it died."""
        now = perf_counter_ns()
        due = [(place, died_ns) for at, place, died_ns in self._due if at <= now]
        self._due = [each for each in self._due if each[0] > now]
        return due

    def wait_s(self, most_s: float) -> float:
        """How long the supervisor may wait for other things."""
        left = [(at - perf_counter_ns()) / 1e9 for at, _, _ in self._due]
        return max(min([most_s, *left]), 0.0)

    def entered(self, process: int, era: int, leases: list[tuple[int, int, int]]) -> None:
        """A process has entered an era; see `Eras`."""
        self.eras.entered(process, era, leases, self._processes)

    def delivered(self) -> None:
        """An item has come through again."""
        now = perf_counter_ns()
        self._stuck = 0
        for each in self.restarts:
            each.lost_ns = each.lost_ns or now - each.death.at_ns
