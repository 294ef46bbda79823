"""CPUs, memory and GPUs of this machine, as the cgroup and the affinity mask allow them; the CPU time of a process."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagepipe.core import VERSION
from stagepipe.machine.cgroup import memory_limit_bytes

_NVIDIA_GPU_DIR = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Machine:
    """The properties of a machine that the plan needs: usable CPUs, memory in bytes, the names of its GPUs."""

    cpus: int
    memory_bytes: int
    cuda_devices: tuple[str, ...] = ()


def detect_machine() -> Machine:
    """The CPUs, the memory and the GPUs that this process may use."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit_bytes = memory_limit_bytes()
    if limit_bytes is not None:
        memory_bytes = min(memory_bytes, limit_bytes)
    return Machine(len(os.sched_getaffinity(0)), memory_bytes, _find_cuda_devices())


def read_cpu_model() -> str:
    """The name of the CPU, if the kernel reports it. psutil does not have it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "unknown CPU"


def _find_cuda_devices() -> tuple[str, ...]:
    """The visible GPUs, as in CUDA_VISIBLE_DEVICES. Reads the driver's files, because importing torch takes 2 s."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip() not in {"", "-1"})
    with contextlib.suppress(OSError):
        return tuple(str(index) for index, _ in enumerate(_NVIDIA_GPU_DIR.iterdir()))
    return ()


def describe_host() -> dict[str, Any]:
    """The report's `host`: CPUs, memory in bytes, kernel, Python, and the versions of relevant packages."""
    machine = detect_machine()
    return {
        "cpus": machine.cpus,
        "memory_bytes": machine.memory_bytes,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": dict(_read_versions()),
    }


@functools.cache
def _read_versions() -> dict[str, str]:
    """The versions of relevant packages, read once per process: finding them among hundreds takes 10 ms."""
    import importlib.metadata

    versions = {"stagepipe": VERSION}
    for package in ("numpy", "torch", "pyzmq", "msgspec"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


# ------------------------------------------------------------------ the CPU time of a process


def cpu_delay_ns(pid: int) -> int:
    """The time that a process's main thread was runnable but had no CPU, in ns; 0 if the kernel does not report it."""
    return _read_schedstat(f"/proc/{pid}/schedstat")[1]


def cpu_time_ns(pid: int) -> int:
    """The CPU time of all threads of a live process, in ns; 0 if the kernel does not report it."""
    return sum(_read_schedstat(path)[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def _read_schedstat(path: str | Path) -> tuple[int, int]:
    """(time on a CPU, time waiting for one) in ns, see https://docs.kernel.org/scheduler/sched-stats.html."""
    try:
        fd = os.open(path, os.O_RDONLY)  # a worker reads it for each chunk: a file object takes 40 us, this 6
        try:
            on_cpu_ns, waiting_ns, *_ = os.read(fd, 128).split()
        finally:
            os.close(fd)
        return int(on_cpu_ns), int(waiting_ns)
    except (OSError, ValueError):
        return 0, 0
