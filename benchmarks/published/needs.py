"""What this machine lacks for a contestant, and how to install it; and the names of a turn's files in shared memory."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

import psutil

from benchmarks.published.model import Contestant, Payload

_DEBIAN = {"rabbitmq-server": "rabbitmq-server", "mpiexec": "openmpi-bin", "redis-server": "redis-server"}
_NOT_IN_PATH = {"rabbitmq-server": "/usr/lib/rabbitmq/bin"}
"""The program in /usr/sbin is a wrapper that switches to another user."""
_PACKAGES = {"grpc": "grpcio", "dora": "dora-rs", "dora_cli": "dora-rs-cli", "pyarrow.flight": "pyarrow"}
_MEMORY_SHARE = 0.9
"""The share of the available memory that a payload may take."""


def unmet_need(contestant: Contestant) -> str:
    """Return why the contestant cannot run here, or ""."""
    for package in contestant.packages:
        if not _importable(package):
            return f"needs the package {_PACKAGES.get(package, package)}; run: pip install 'stagepipe[bench]'"
    for name in contestant.programs:
        if program(name) is None:
            return f"needs {name}; run: python scripts/install_servers.py, or: apt install {_DEBIAN.get(name, name)}"
    return ""


def too_large(contestant: Contestant, payload: Payload) -> str:
    """Return why the contestant cannot carry this payload here, or ""."""
    if contestant.max_bytes is not None and payload.nbytes > contestant.max_bytes:
        return contestant.limit
    needed, available = payload.nbytes * contestant.memory_factor, psutil.virtual_memory().available * _MEMORY_SHARE
    if needed > available:
        return f"takes about {needed / 1e9:.0f} GB of memory; {available / 1e9:.0f} GB are available"
    return ""


def program(name: str) -> str | None:
    """Return the path of a program, from this Python's environment or from the system."""
    folders = (_NOT_IN_PATH.get(name), str(Path(sys.executable).parent))
    return next(
        (path for folder in folders if folder and (path := shutil.which(name, path=folder))), shutil.which(name)
    )


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def turn_prefix() -> str:
    """Return the prefix of the names: the name of the turn's temporary folder. Call it in the process of the turn."""
    return Path(tempfile.gettempdir()).name
