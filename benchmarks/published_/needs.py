"""What this machine lacks for a contestant, in words that say how to mend it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import psutil

from published_.model import Contestant, Payload

_DEBIAN = {"rabbitmq-server": "rabbitmq-server", "mpiexec": "openmpi-bin", "redis-server": "redis-server"}
_NOT_IN_PATH = {"rabbitmq-server": "/usr/lib/rabbitmq/bin"}
"""What /usr/sbin has is a wrapper that becomes another user."""
_PACKAGES = {"grpc": "grpcio", "dora": "dora-rs", "dora_cli": "dora-rs-cli", "pyarrow.flight": "pyarrow"}
_SHARE = 0.9
"""Of the memory that is available."""


def lacking(contestant: Contestant) -> str:
    """Why it cannot run at all, or "" ."""
    for package in contestant.packages:
        if not _importable(package):
            return f"needs the package {_PACKAGES.get(package, package)}: pip install 'stagepipe[bench]'"
    for name in contestant.programs:
        if program(name) is None:
            return f"needs {name}: python scripts/install_servers.py, or apt install {_DEBIAN.get(name, name)}"
    return ""


def too_large(contestant: Contestant, payload: Payload) -> str:
    """Why it cannot carry this payload here, or ""."""
    if contestant.max_bytes is not None and payload.nbytes > contestant.max_bytes:
        return contestant.limit
    wanted, there = payload.nbytes * contestant.memory_factor, psutil.virtual_memory().available * _SHARE
    if wanted > there:
        return f"takes about {wanted / 1e9:.0f} GB of memory; {there / 1e9:.0f} are free here"
    return ""


def program(name: str) -> str | None:
    """Where a program is: one of this Python's packages, or of the system."""
    places = (_NOT_IN_PATH.get(name), str(Path(sys.executable).parent))
    return next((found for place in places if place and (found := shutil.which(name, path=place))), shutil.which(name))


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
