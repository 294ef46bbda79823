"""The machine and its limits, as this process may use them. Reads files of the kernel only; starts nothing.

machine   CPUs, memory and GPUs
cgroup    limits and counters of the control group
limits    descriptors, address space, file sizes, processes and threads
cpu_time  the CPU time of a process
load      the CPUs and the memory that other processes leave
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.machine.cgroup import cpu_quota, oom_kill_count, read_throttling
    from stagepipe.machine.cpu_time import cpu_delay_ns, cpu_time_ns
    from stagepipe.machine.limits import SystemLimits, read_system_limits
    from stagepipe.machine.load import CpuLoadMeter, compute_free_cpus, read_free_memory_bytes
    from stagepipe.machine.machine import Machine, describe_host, detect_machine, read_cpu_model

__all__ = [
    "CpuLoadMeter",
    "Machine",
    "SystemLimits",
    "compute_free_cpus",
    "cpu_delay_ns",
    "cpu_quota",
    "cpu_time_ns",
    "describe_host",
    "detect_machine",
    "oom_kill_count",
    "read_cpu_model",
    "read_free_memory_bytes",
    "read_system_limits",
    "read_throttling",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CpuLoadMeter": "load",
        "Machine": "machine",
        "SystemLimits": "limits",
        "compute_free_cpus": "load",
        "cpu_delay_ns": "cpu_time",
        "cpu_quota": "cgroup",
        "cpu_time_ns": "cpu_time",
        "describe_host": "machine",
        "detect_machine": "machine",
        "oom_kill_count": "cgroup",
        "read_cpu_model": "machine",
        "read_free_memory_bytes": "load",
        "read_system_limits": "limits",
        "read_throttling": "cgroup",
    },
)
