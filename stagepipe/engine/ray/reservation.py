"""Reserves the CPUs and GPUs of a run, so that no other job takes one that it still waits for. In the caller's process.

Two runs that start at once may each find the same CPUs free, and then wait for each other without end. A placement
group of Ray is all there or not at all; there is one for each process of the plan, with a bundle for each worker. In a
single one, a small worker could take the bundle of a large one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any, Final

from stagepipe.core import RunError
from stagepipe.engine.ray.cpu_shares import CpuShares
from stagepipe.plan import ProcessPlan

_TIMEOUT_S: Final = 15.0
"""Ray places a group within a second, if there is room."""
_ATTEMPTS: Final = 2
_MAX_PAUSE_S: Final = 5.0
"""Between two attempts, by chance: two runs that have each reserved a part give it back, and one of them is first."""


class Reservation:
    """The CPUs and GPUs of the processes that run on Ray, until `release`. Workers that Ray starts again keep them."""

    def __init__(self, processes: Sequence[ProcessPlan], shares: CpuShares) -> None:
        """Reserve what `shares` says. Raises RunError, and keeps nothing, if that is not free within half a minute."""
        self._groups: dict[str, Any] = {}
        for attempt in range(_ATTEMPTS):
            if attempt:
                # not the generator that the user's program has seeded
                sleep(random.SystemRandom().uniform(0, _MAX_PAUSE_S))
            try:
                missing = self._try_to_reserve(processes, shares)
            except BaseException:
                self.release()
                raise
            if not missing:
                return
            self.release()
        place = f"engine: ray: no room for {', '.join(missing)} within {_ATTEMPTS * _TIMEOUT_S:.0f} s"
        raise RunError(
            f"{place}: another job took CPUs that were free, or no node has enough of them for one worker; run it "
            "again when that job has ended, or set fewer `workers` or a smaller `resources: {cpus: ...}`"
        )

    def _try_to_reserve(self, processes: Sequence[ProcessPlan], shares: CpuShares) -> list[str]:
        """Return the processes for which there was no room."""
        from ray.util.placement_group import placement_group

        counts = [shares.source_tasks, *(process.workers for process in processes[1:])]
        wanted = zip(shares.by_process, counts, processes, strict=True)
        for share, count, process in sorted(wanted, key=lambda each: each[0], reverse=True):  # small ones fit anywhere
            self._groups[process.name] = placement_group([_make_bundle(process, share)] * count, strategy="SPREAD")
        deadline_s = monotonic() + _TIMEOUT_S
        return [name for name, group in self._groups.items() if not group.wait(max(deadline_s - monotonic(), 1.0))]

    def get_options(self, name: str) -> dict[str, Any]:
        """Return the options of Ray that put the workers of a process in their places."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._groups[name])}

    def release(self) -> None:
        """Give all of it back. Call it while Ray is connected."""
        from ray.util.placement_group import remove_placement_group

        for group in self._groups.values():
            remove_placement_group(group)
        self._groups.clear()


def _make_bundle(process: ProcessPlan, cpus: float) -> dict[str, float]:
    resources = process.first_stage.resources
    gpus = None if resources is None else resources.gpus
    return {"CPU": cpus} if not gpus else {"CPU": cpus, "GPU": gpus}
