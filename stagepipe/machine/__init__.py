"""The machine and its limits, as this process may use them. Starts nothing. Only the check-up tries things out.

machine   CPUs, memory and GPUs
cgroup    limits and counters of the control group
limits    descriptors, address space, file sizes, processes and threads
cpu_time  the CPU time of a process
load      the CPUs and the memory that other processes leave
checkup/  whether a run can start here, for `stagepipe doctor`
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.machine.cgroup import cpu_quota, oom_kill_count, read_throttling
    from stagepipe.machine.checkup import HealthCheck, HealthStatus, examine_machine
    from stagepipe.machine.cpu_time import cpu_delay_ns, cpu_time_ns
    from stagepipe.machine.limits import SystemLimits, read_system_limits
    from stagepipe.machine.load import CpuLoadMeter, compute_free_cpus, read_free_memory_bytes
    from stagepipe.machine.machine import Machine, describe_host, detect_machine, read_cpu_model

__all__ = [
    "CpuLoadMeter",
    "HealthCheck",
    "HealthStatus",
    "Machine",
    "SystemLimits",
    "compute_free_cpus",
    "cpu_delay_ns",
    "cpu_quota",
    "cpu_time_ns",
    "describe_host",
    "detect_machine",
    "examine_machine",
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
        "HealthCheck": "checkup",
        "HealthStatus": "checkup",
        "Machine": "machine",
        "SystemLimits": "limits",
        "compute_free_cpus": "load",
        "cpu_delay_ns": "cpu_time",
        "cpu_quota": "cgroup",
        "cpu_time_ns": "cpu_time",
        "describe_host": "machine",
        "detect_machine": "machine",
        "examine_machine": "checkup",
        "oom_kill_count": "cgroup",
        "read_cpu_model": "machine",
        "read_free_memory_bytes": "load",
        "read_system_limits": "limits",
        "read_throttling": "cgroup",
    },
)
