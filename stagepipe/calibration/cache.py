"""Keeps the cost curves of this machine in the user's cache folder, by CPU, kernel, Python and stagepipe version.

Runs in the caller's process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Final

from stagepipe.core import KeptFiles
from stagepipe.costs import CostCurves
from stagepipe.machine import read_cpu_model

_CACHE_FORMAT_VERSION = 4
_NOISY_RELATIVE_IQR = 0.6
"""Curves with a larger interquartile range are noisy, because other programs used the machine."""
_NOISY_CACHE_LIFETIME = dt.timedelta(hours=1)
"""Noisy curves are measured again after this time."""

_KEPT: Final = KeptFiles()


def make_cache_key(version: str) -> str:
    """A key that changes with the CPU, the kernel, Python and stagepipe."""
    parts = (read_cpu_model(), os.cpu_count(), platform.release(), sys.version, version, _CACHE_FORMAT_VERSION)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def load_curves(version: str) -> CostCurves:
    """Return the curves of this machine from the cache, or measure them and cache them if the folder is writable.

    Noisy curves are measured again after an hour. The less noisy of the two measurements is kept.

    Raises RunError if the machine cannot be measured.
    """
    cached = load_cached_curves(version)
    if cached is not None and (cached.relative_iqr < _NOISY_RELATIVE_IQR or _is_recent(cached)):
        return cached
    from stagepipe.calibration.measurement import measure_curves  # rarely: at the first start on a machine

    curves = measure_curves()
    if cached is not None and cached.relative_iqr < curves.relative_iqr:
        curves = dataclasses.replace(cached, measured_at=curves.measured_at)
    save_curves(curves, version)
    return curves


def load_cached_curves(version: str) -> CostCurves | None:
    """Return the curves in the cache; None if there are none or the file is damaged."""
    path = _KEPT.get_path(_name_file(version))
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return CostCurves.from_dict(json.loads(path.read_text()))
    return None


def _is_recent(curves: CostCurves) -> bool:
    now = dt.datetime.now(dt.UTC)
    with contextlib.suppress(ValueError, TypeError):
        return now - _NOISY_CACHE_LIFETIME < dt.datetime.fromisoformat(curves.measured_at) <= now
    return False


def save_curves(curves: CostCurves, version: str) -> Path:
    """Write the curves to the cache if its folder is writable. Returns the path either way."""
    name = _name_file(version)
    text = json.dumps(curves.to_dict())
    with contextlib.suppress(OSError):
        _KEPT.write(name, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))
    return _KEPT.get_path(name)


def _name_file(version: str) -> str:
    return f"curves-{make_cache_key(version)}.json"
