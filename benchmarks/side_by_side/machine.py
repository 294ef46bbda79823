"""What was measured on, and with what."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PACKAGES = ("stagepipe", "numpy", "torch", "pyzmq")


def machine(packages: Sequence[str] = ()) -> dict[str, Any]:
    """What was measured on, and with what; `packages` besides the usual ones, where they are there."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    versions = {"python": platform.python_version()}
    for package in (*_PACKAGES, *packages):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "load_average": os.getloadavg()[0],
        "versions": versions,
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def machine_line(found: dict[str, Any]) -> str:
    """The machine on a line."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{hardware_line(found)}, {versions}; load average {found['load_average']:.1f}"


def hardware_line(found: dict[str, Any]) -> str:
    """What it is, without what ran on it: there is room for it below a plot."""
    gib = found["memory_bytes"] / (1 << 30)
    return f"{found['cpu']}, {found['cpus']} CPUs, {gib:.0f} GiB, Linux {found['kernel']}"
