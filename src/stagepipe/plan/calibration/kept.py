"""The curves of this machine: kept in the user's cache folder under a key of cpu, kernel, Python and version."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from stagepipe.plan.calibration.measuring import measure
from stagepipe.plan.curves import Curves

_FORMAT = 3
_NOISY = 0.6
_NOISY_FOR = dt.timedelta(hours=1)
"""Curves with a wider spread than that are measured again after so long: the machine was busy with something else."""


def machine_key(version: str) -> str:
    """Changes with cpu, kernel, Python and stagepipe."""
    cpu = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line for line in lines if line.startswith("model name")), "")
    parts = (cpu, os.cpu_count(), platform.release(), sys.version, version, _FORMAT)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def cache_folder() -> Path:
    """The user's cache folder for stagepipe. For a user without a home it is one that cannot be written."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "stagepipe"
    except RuntimeError:  # as in a container that runs under any user's number
        return Path("/nonexistent/stagepipe")


def load(version: str) -> Curves:
    """The curves of this machine: from the cache, or measured and cached where the folder can be written.

    Curves of a busy machine are measured again after an hour; the quieter ones are kept.
    """
    path = cache_folder() / f"curves-{machine_key(version)}.json"
    cached = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        cached = Curves.from_plain(json.loads(path.read_text()))
    if cached is not None and (cached.spread < _NOISY or _is_new(cached)):
        return cached
    curves = measure()
    if cached is not None and cached.spread < curves.spread:
        curves = dataclasses.replace(cached, when=curves.when)
    keep(curves, version)
    return curves


def _is_new(curves: Curves) -> bool:
    now = dt.datetime.now(dt.UTC)
    with contextlib.suppress(ValueError, TypeError):
        return now - _NOISY_FOR < dt.datetime.fromisoformat(curves.when) <= now
    return False


def keep(curves: Curves, version: str) -> Path:
    """Write the curves to the cache, if its folder can be written, and say where that is."""
    path = cache_folder() / f"curves-{machine_key(version)}.json"
    with contextlib.suppress(OSError):
        _write(path, curves.to_plain())
    return path


def _write(path: Path, plain: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(fd, "w") as file:
        json.dump(plain, file)
    Path(name).replace(path)
