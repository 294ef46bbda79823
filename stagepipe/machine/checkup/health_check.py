"""`HealthCheck`: what one check of `stagepipe doctor` found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class HealthStatus(Enum):
    """How grave a finding is."""

    OK = "ok"
    WARN = "warn"
    """A run works, but slower, or not in every case."""
    FAIL = "fail"
    """No run can start."""


@dataclass(frozen=True, kw_only=True)
class HealthCheck:
    """A check: its name, the value seen, and what to do about it; `fix` is "" if there is nothing to do."""

    name: str
    status: HealthStatus
    value: str
    fix: str = ""


def passed(name: str, value: str) -> HealthCheck:
    """Return a check that found nothing wrong."""
    return HealthCheck(name=name, status=HealthStatus.OK, value=value)


def warned(name: str, value: str, fix: str) -> HealthCheck:
    """Return a check that found something to improve."""
    return HealthCheck(name=name, status=HealthStatus.WARN, value=value, fix=fix)


def failed(name: str, value: str, fix: str) -> HealthCheck:
    """Return a check that found what keeps a run from starting."""
    return HealthCheck(name=name, status=HealthStatus.FAIL, value=value, fix=fix)
