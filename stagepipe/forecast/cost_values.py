"""The costs of a pipeline, and the resources that its workers may use, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagepipe.machine import Machine


@dataclass(frozen=True, kw_only=True)
class ProcessCost:
    """The cost of a process with all its stages, per source item.

    Only `cpu_ns` includes its sides of the hops. `is_single_worker`: the process cannot have more than one worker.
    `unfusable_reason` says why it cannot run in the process before it; it is empty if it can. `config_path` is its path
    in overrides: `stages.NAME`, or `sink`.
    """

    name: str
    last_stage: str  # the name of its last stage
    run_ns: float  # in the functions of its stages
    call_ns: float  # around these functions
    loop_ns: float  # in the worker's loop
    cpu_ns: float  # CPU time, hops included
    memory_bytes: int  # of one worker
    scheduled_fraction: float = 1.0  # share of its stages' time that is not a wait for a CPU
    is_single_worker: bool = False
    unfusable_reason: str = ""
    has_own_threads: bool = False  # it sets `threads`, which a fused stage cannot set
    max_workers: int | None = None  # limited by its `cpus`, its GPU, or the memory for parts
    gpus_per_worker: int = 0  # if its workers are spread over the GPUs (`device: cuda`)
    config_path: str = ""
    is_measured: bool = True  # whether the probe brought items to all its stages; otherwise its costs are 0 here
    start_ns: float = 0.0  # CPU time of one worker until it sent its first item

    @property
    def is_sink(self) -> bool:
        """Whether it makes or writes the parts of sinks."""
        return self.config_path.partition(".")[0] == "sink"


@dataclass(frozen=True)
class HopCost:
    """The work of the two sides of a hop, per source item."""

    send_ns: float
    receive_ns: float

    @property
    def total_ns(self) -> float:
        """The work of both sides."""
        return self.send_ns + self.receive_ns


@dataclass(frozen=True)
class PipelineCosts:
    """The costs of a chain: `hops[i]` leads from `processes[i]` to the next process, the last one to the consumer.

    `sink_ns` is the work of the sink per source item; for `sink_waiting_ns` of it the sink uses no CPU.
    """

    processes: tuple[ProcessCost, ...]
    hops: tuple[HopCost, ...]
    sink_ns: float = 0.0
    sink_waiting_ns: float = 0.0

    def with_hops(self, hops: tuple[HopCost, ...]) -> PipelineCosts:
        """Copy the costs with other hops, and reduce the CPU time of the processes at their ends.

        If a process used less CPU time than its work lasted, it saves CPU time in the same proportion.
        """
        processes = []
        for index, process in enumerate(self.processes):
            sides_ns, new_sides_ns = (_sum_sides_ns(each, index) for each in (self.hops, hops))
            work_ns = process.run_ns + process.call_ns + process.loop_ns + sides_ns
            cpu_share = min(process.cpu_ns / work_ns, 1.0) if work_ns else 1.0
            saved_ns = (sides_ns - new_sides_ns) * cpu_share
            processes.append(replace(process, cpu_ns=max(process.cpu_ns - saved_ns, 0.0)))
        return replace(self, processes=tuple(processes), hops=hops)


def _sum_sides_ns(hops: Sequence[HopCost], index: int) -> float:
    """The work of a process on the hops at its ends."""
    return hops[index].send_ns + (hops[index - 1].receive_ns if index else 0.0)


@dataclass(frozen=True, kw_only=True)
class ResourceBudget:
    """The resources that workers may use.

    `cpus` may be a fraction: other processes use the rest of the `machine_cpus`. `arena_bytes` of `memory_bytes` are
    reserved as shared memory.
    """

    cpus: float
    machine_cpus: int
    memory_bytes: int
    arena_bytes: int
    gpus: int = 0

    @classmethod
    def of_machine(cls, machine: Machine, arena_bytes: int) -> ResourceBudget:
        """Return the budget of a run that has the machine to itself."""
        return cls(
            cpus=float(machine.cpus),
            machine_cpus=machine.cpus,
            memory_bytes=machine.memory_bytes,
            arena_bytes=arena_bytes,
            gpus=len(machine.cuda_devices),
        )


def compute_expected_cpus(free_cpus: float, machine_cpus: int) -> float:
    """Return the CPUs that a run can expect while other processes use the rest.

    These are the free CPUs, or, if larger, the share that a fair scheduler gives to one worker per CPU: if a process
    already uses one of two CPUs, it and two workers get a third of the time each.

    >>> compute_expected_cpus(2.0, 2), round(compute_expected_cpus(1.0, 2), 2), compute_expected_cpus(0.0, 2)
    (2.0, 1.33, 1.0)
    """
    other_cpus = max(machine_cpus - free_cpus, 0.0)
    return min(max(free_cpus, machine_cpus**2 / (machine_cpus + other_cpus)), float(machine_cpus))
