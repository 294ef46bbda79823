"""What the workers of a plan may use of the machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ResourceBudget:
    """What workers may use.

    `cpus` may be a fraction: other processes take the rest of the `machine_cpus`. `arena_bytes` of `memory_bytes` are
    set aside as shared memory.
    """

    cpus: float
    machine_cpus: int
    memory_bytes: int
    arena_bytes: int
    gpus: int = 0


def compute_expected_cpus(free_cpus: float, machine_cpus: int) -> float:
    """Return the CPUs that a run can expect while other processes use the rest.

    These are the free ones, or the share that a fair scheduler gives to one worker per CPU if that is more: a process
    that takes one of two CPUs leaves a third of the time to each of three.

    >>> compute_expected_cpus(2.0, 2), round(compute_expected_cpus(1.0, 2), 2), compute_expected_cpus(0.0, 2)
    (2.0, 1.33, 1.0)
    """
    other_cpus = max(machine_cpus - free_cpus, 0.0)
    return min(max(free_cpus, machine_cpus**2 / (machine_cpus + other_cpus)), float(machine_cpus))
