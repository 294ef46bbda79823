"""The Ray cluster of a run: starts or joins it, and divides its CPUs among the workers. In the caller's process."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final

from stagepipe.core import RunError, UsageError, install_command
from stagepipe.machine import detect_machine, read_free_memory_bytes
from stagepipe.plan import ProcessPlan

_MIN_SHARE: Final = 0.01
"""Ray keeps four digits of an amount of CPUs; below a hundredth, a worker would have no CPU to speak of."""
_EQUAL_PART: Final = 0.2
"""Of the CPUs that workers share by their load, the part that all have alike."""
_MIN_STORE_BYTES: Final = 80 << 20
"""Ray accepts no smaller object store than 75 MB (ray_constants.OBJECT_STORE_MINIMUM_MEMORY_BYTES)."""
_START_ATTEMPTS: Final = 3
"""Ray gives its processes 30 s to start (ray/_private/node.py), which a busy machine exceeds."""
_RELEASE_TIMEOUT_S: Final = 10.0
"""Long enough for processes to end on a busy machine, short enough for an answer within seconds."""
_POLL_INTERVAL_S: Final = 0.1
_EXECUTOR_LOGGER: Final = "ray.data._internal.execution.streaming_executor"
_SHARED_MEMORY_FOLDER: Final = "/dev/shm"  # noqa: S108 - asked for its size; Ray puts its object store there
_STORE_MEMORY_SHARE: Final = 0.3
"""Of the free memory and of /dev/shm: the share that Ray itself takes by default."""


@dataclass(frozen=True)
class CpuShares:
    """The CPUs that Ray reserves for a worker of each process, and how many read tasks run at a time."""

    by_process: tuple[float, ...]
    source_tasks: int


class RayCluster:
    """A connection to Ray. A cluster that it has started ends with it; one that it has joined stays."""

    def __init__(self, address: str | None) -> None:
        """Join the cluster at `address`, or that of the environment; else start one on this machine."""
        self._starts = False
        self._joins = False
        self._folder = ""
        try:
            import ray
        except ImportError as error:
            raise UsageError(f"engine: ray needs the package ray: `{install_command('ray')}`") from error
        self._ray: Any = ray
        if ray.is_initialized():
            return
        address = address or os.environ.get("RAY_ADDRESS") or None
        if address in {None, "local"}:
            self._start()
        else:
            self._join(str(address))

    def _start(self) -> None:
        machine = detect_machine()
        self._folder = tempfile.mkdtemp(prefix="stagepipe-ray-")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run sends nothing off this machine
        store_bytes = _STORE_MEMORY_SHARE * min(read_free_memory_bytes(), shutil.disk_usage(_SHARED_MEMORY_FOLDER).free)
        self._starts = True
        for attempt in range(_START_ATTEMPTS):
            try:
                self._ray.init(
                    address="local",
                    num_cpus=machine.cpus,
                    include_dashboard=False,
                    object_store_memory=max(int(store_bytes), _MIN_STORE_BYTES),
                    logging_level=logging.WARNING,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=self._folder,
                )
                break
            except Exception as error:
                self._ray.shutdown()
                if "timed out" in str(error) and attempt + 1 < _START_ATTEMPTS:
                    continue
                self.close()
                raise RunError(f"engine: ray: cannot start Ray on this machine: {error}") from error
        logging.getLogger(_EXECUTOR_LOGGER).addFilter(_is_warning)  # Ray Data sets the levels again

    def _join(self, address: str) -> None:
        try:
            self._ray.init(address=address, logging_level=logging.WARNING)
        except Exception as error:
            hint = "check `address` or RAY_ADDRESS; without both, a run starts Ray on this machine"
            raise UsageError(f"engine: ray: cannot join the cluster at {address}: {error}; {hint}") from error
        self._joins = True

    def divide_cpus(self, processes: Sequence[ProcessPlan], cpu_costs: Mapping[str, float]) -> CpuShares:
        """Return the CPUs of each process, of those that are free. Raises UsageError if they do not suffice.

        Waits some seconds for workers of a run that has just ended: Ray releases their CPUs when they are gone.
        """
        deadline_s = monotonic() + _RELEASE_TIMEOUT_S
        while True:
            total, free = self._ray.cluster_resources(), self._ray.available_resources()
            if free.get("CPU", 0.0) >= total.get("CPU", 0.0) or monotonic() >= deadline_s:
                break
            sleep(_POLL_INTERVAL_S)
        largest = max((node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]), default=0.0)
        _check_gpus(processes, total.get("GPU", 0.0))
        return divide_cpus(processes, total.get("CPU", 0.0), free.get("CPU", 0.0), largest, cpu_costs)

    def close(self) -> None:
        """End the cluster if this run has started it; leave it if it was joined."""
        if self._starts or self._joins:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._starts = self._joins = False
        self._folder = ""


def divide_cpus(
    processes: Sequence[ProcessPlan],
    total: float,
    free: float,
    largest_node: float,
    cpu_costs: Mapping[str, float] | None = None,
) -> CpuShares:
    """Divide `free` of `total` CPUs; `processes` run on Ray, the source first. Pure.

    A stage with `resources: {cpus: ...}` has what it asks for; the source and all other workers share the rest, each a
    fraction of a CPU where there are fewer CPUs than workers: whole CPUs for actors would leave none to the source. The
    fractions are by `cpu_costs`, the measured CPU time of each process per item, if it is known for all of them.
    Raises UsageError, with the sums, for a plan that Ray would wait for without end.
    """
    asked = {process.name: _get_cpus(process) for process in processes}
    workers = {process.name: process.workers for process in processes[1:]}
    for name, cpus in asked.items():
        if cpus is not None and cpus > largest_node:
            raise UsageError(
                f"engine: ray: a worker of stage {name} asks for {cpus:g} CPUs, and the largest node has "
                f"{largest_node:g}; set `stages.{name}.resources.cpus={max(largest_node, _MIN_SHARE):g}` or less"
            )
    demand = sum((asked[name] or 0.0) * count for name, count in workers.items())
    sharers = sum(count for name, count in workers.items() if asked[name] is None)
    source_tasks = max(1, min(int(total) - sum(workers.values()), max(workers.values(), default=int(total))))
    share = min(1.0, int((free - demand) / (sharers + source_tasks) * 100) / 100)
    if share < _MIN_SHARE:
        raise UsageError(_describe_shortage(asked, workers, total, free))
    counts = {processes[0].name: source_tasks, **workers}
    counts = {name: count for name, count in counts.items() if asked[name] is None or name == processes[0].name}
    shares = _weigh_shares(share, counts, cpu_costs or {})
    return CpuShares(tuple(asked[process.name] or shares[process.name] for process in processes), source_tasks)


def _weigh_shares(equal_share: float, counts: Mapping[str, int], cpu_costs: Mapping[str, float]) -> dict[str, float]:
    """Divide the CPUs of `counts` workers with `equal_share` each by their measured load, and none more than one.

    A small part is equal: a worker that is quick on average must start too, and has slow items.
    """
    costs = {name: cpu_costs[name] for name in counts if name in cpu_costs}
    total_cost = sum(costs.values())
    if equal_share >= 1 or len(costs) < len(counts) or total_cost <= 0:
        return dict.fromkeys(counts, equal_share)
    whole = equal_share * sum(counts.values())
    shares = {}
    for name, count in counts.items():
        share = _EQUAL_PART * equal_share + (1 - _EQUAL_PART) * whole * costs[name] / total_cost / count
        shares[name] = max(min(1.0, int(share * 100) / 100), _MIN_SHARE)
    is_too_much = sum(shares[name] * count for name, count in counts.items()) > whole  # the smallest were rounded up
    return dict.fromkeys(counts, equal_share) if is_too_much else shares


def _describe_shortage(asked: dict[str, float | None], workers: dict[str, int], total: float, free: float) -> str:
    parts = [f"{name}: {count} x {asked[name]:g}" for name, count in workers.items() if asked[name] is not None]
    demand = sum((asked[name] or 0.0) * count for name, count in workers.items())
    if not parts:
        fix = "wait until other jobs have ended, or set fewer `workers`"
        subject = f"{sum(workers.values())} workers and the source need CPUs"
    else:
        names = ", ".join(name for name in workers if asked[name] is not None)
        fix = f"set a smaller `resources: {{cpus: ...}}` (0.5, for example) or fewer `workers` for {names}"
        subject = f"the stages ask for {demand:g} CPUs ({', '.join(parts)}), and the source needs a part of one too"
    return f"engine: ray: {subject}, but {free:g} of the cluster's {total:g} CPUs are free; {fix}"


def _check_gpus(processes: Sequence[ProcessPlan], total: float) -> None:
    demand = sum(_get_gpus(process) * process.workers for process in processes)
    if demand > total:
        names = ", ".join(process.name for process in processes if _get_gpus(process))
        raise UsageError(
            f"engine: ray: the stages {names} ask for {demand:g} GPUs, and the cluster has {total:g}; set a smaller "
            "`resources: {gpus: ...}` or fewer `workers`"
        )


def _get_cpus(process: ProcessPlan) -> float | None:
    resources = process.first_stage.resources
    return None if resources is None else resources.cpus


def _get_gpus(process: ProcessPlan) -> float:
    resources = process.first_stage.resources
    return 0.0 if resources is None or resources.gpus is None else resources.gpus


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING
