"""What machine this is: processors and memory, as the cgroup and the affinity mask allow them."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import Any

from stagepipe.core.cgroup import memory_limit_bytes
from stagepipe.plan.make import Machine

_GPUS = Path("/proc/driver/nvidia/gpus")


def this_machine() -> Machine:
    """The processors, the memory and the GPUs that this process may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit_bytes()
    memory = memory if limit is None else min(memory, limit)
    return Machine(len(os.sched_getaffinity(0)), memory, _cuda_devices())


def _cuda_devices() -> tuple[str, ...]:
    """The GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them. Asks the driver's files: torch takes 2 s."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip() not in {"", "-1"})
    with contextlib.suppress(OSError):
        return tuple(str(number) for number, _ in enumerate(_GPUS.iterdir()))
    return ()


def host() -> dict[str, Any]:
    """The report's `host`: processors, memory in bytes, kernel, Python and the versions of what matters."""
    import importlib.metadata

    machine = this_machine()
    versions = {}
    for package in ("stagepipe", "numpy", "torch", "pyzmq", "msgspec"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "cpus": machine.cpus,
        "memory_bytes": machine.memory_bytes,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
    }
