"""Reserves the CPUs and GPUs of a run, so that no other job takes one that it still waits for. In the caller's process.

Two runs that start at once may each find the same CPUs free, and then wait for each other without end. A placement
group of Ray is all there or not at all; there is one for each process of the plan, with a bundle for each worker. In a
single one, a small worker could take the bundle of a large one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final

from stagepipe.core import RunError
from stagepipe.engine.ray.cpu_shares import CpuShares, get_gpus
from stagepipe.plan import ProcessPlan

_TIMEOUT_S: Final = 10.0
"""Ray places a group within a second, if there is room."""
_MAX_PAUSES_S: Final = (4.0, 12.0)
"""Between attempts, by chance: two runs that have each reserved a part give it back, and one of them is first."""


class Reservation:
    """The CPUs and GPUs of the processes that run on Ray, until `release`."""

    def __init__(self, processes: Sequence[ProcessPlan], shares: CpuShares) -> None:
        """Reserve what `shares` says. Raises RunError, and keeps nothing, if there is no room within a minute."""
        self._groups: dict[str, Any] = {}
        try:
            self._reserve(processes, shares)
        except BaseException:
            self.release()
            raise

    def _reserve(self, processes: Sequence[ProcessPlan], shares: CpuShares) -> None:
        counts = [shares.source_tasks, *(process.workers for process in processes[1:])]
        wanted = list(zip(processes, map(_make_bundle, processes, shares.by_process), counts, strict=True))
        wanted.sort(key=lambda each: (each[1].get("GPU", 0.0), each[1]["CPU"]), reverse=True)  # small ones fit anywhere
        for max_pause_s in (*_MAX_PAUSES_S, 0.0):
            missing = self._try_to_reserve(wanted)
            if not missing:
                return
            self.release()
            sleep(random.SystemRandom().uniform(0, max_pause_s))  # not the generator that the user has seeded
        parts = [f"{name}: {count} x {_describe(bundle)}" for name, bundle, count in missing]
        raise RunError(
            f"engine: ray: there is no room for {', '.join(parts)}: another job took what was free, or no node has "
            "enough for one worker; run it again when that job has ended, or set fewer `workers` or smaller `resources`"
        )

    def _try_to_reserve(
        self, wanted: Sequence[tuple[ProcessPlan, dict[str, float], int]]
    ) -> list[tuple[str, dict[str, float], int]]:
        """Return that for which there was no room."""
        from ray.util.placement_group import placement_group

        for process, bundle, count in wanted:
            self._groups[process.name] = placement_group([bundle] * count, strategy="SPREAD")
        deadline_s = monotonic() + _TIMEOUT_S
        return [
            (process.name, bundle, count)
            for process, bundle, count in wanted
            if not _wait(self._groups[process.name], deadline_s)
        ]

    def get_options(self, name: str) -> dict[str, Any]:
        """Return the options of Ray that put the workers of a process in their places."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._groups[name])}

    def list_displaced(self) -> list[str]:
        """Return the processes of which a worker has no place, because its node is lost and no other has room."""
        from ray.util.placement_group import placement_group_table

        return [name for name, group in self._groups.items() if placement_group_table(group).get("state") != "CREATED"]

    def release(self) -> None:
        """Give all of it back. Does nothing where Ray has ended, or does not answer: then nothing is reserved."""
        from ray.util.placement_group import remove_placement_group

        while self._groups:
            _, group = self._groups.popitem()
            with suppress(Exception):
                remove_placement_group(group)


def _wait(group: Any, deadline_s: float) -> bool:
    """Wait in short turns, because Ray does not let Ctrl-C through."""
    while True:
        if group.wait(1):
            return True
        if monotonic() >= deadline_s:
            return False


def _make_bundle(process: ProcessPlan, cpus: float) -> dict[str, float]:
    gpus = get_gpus(process)
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


def _describe(bundle: dict[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())
