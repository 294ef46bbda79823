"""The machine and its limits, as this process may use them. Starts nothing. Only the doctor tries things out.

machine  CPUs, memory and GPUs, and the CPU time of a process
cgroup   limits and counters of the control group
limits   the system's limits for this process, and the CPUs and memory that other processes leave
doctor   checks whether a run can start here, for `stagepipe doctor`

A worker needs only the CPU time. The names load lazily, because `limits` imports psutil.
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.machine.cgroup import cpu_quota, oom_kill_count, read_throttling
    from stagepipe.machine.doctor import CheckStatus, DoctorCheck, diagnose
    from stagepipe.machine.limits import (
        CpuLoadMeter,
        CpuLoadSeries,
        SystemLimits,
        compute_free_cpus,
        read_free_memory_bytes,
        read_own_memory_bytes,
        read_system_limits,
    )
    from stagepipe.machine.machine import (
        Machine,
        cpu_delay_ns,
        cpu_time_ns,
        describe_host,
        detect_machine,
        read_cpu_model,
    )

__all__ = [
    "CheckStatus",
    "CpuLoadMeter",
    "CpuLoadSeries",
    "DoctorCheck",
    "Machine",
    "SystemLimits",
    "compute_free_cpus",
    "cpu_delay_ns",
    "cpu_quota",
    "cpu_time_ns",
    "describe_host",
    "detect_machine",
    "diagnose",
    "oom_kill_count",
    "read_cpu_model",
    "read_free_memory_bytes",
    "read_own_memory_bytes",
    "read_system_limits",
    "read_throttling",
]

__getattr__ = lazy_names(__name__, __file__)
