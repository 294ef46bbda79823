"""The machine, its software and its load."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("stagepipe", "numpy", "torch", "pyzmq")


def machine(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the machine. `packages` are listed with the usual ones; a package that is not installed is left out."""
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


def find_commit() -> str:
    """Return the commit of this checkout, with `-dirty` if tracked files differ; "unknown" without git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],  # noqa: S607 - the git of the user
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def repeat_command(name: str) -> str:
    """Return the command that runs this benchmark again, from the folder of the project.

    >>> repeat_command("hop").startswith("python -m benchmarks.hop")
    True
    """
    return shlex.join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]])


def machine_line(description: dict[str, Any]) -> str:
    """Describe the machine and its software in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in description["versions"].items())
    return f"{hardware_line(description)}, {versions}; load average {description['load_average']:.1f}"


def hardware_line(description: dict[str, Any]) -> str:
    """Describe the hardware alone, in a line short enough to stand below a plot."""
    gib = description["memory_bytes"] / (1 << 30)
    return f"{description['cpu']}, {description['cpus']} CPUs, {gib:.0f} GiB, Linux {description['kernel']}"
