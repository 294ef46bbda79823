"""A spec and a machine become a plan: processes, hops, windows, and why. Starts nothing."""

import importlib
from typing import TYPE_CHECKING, Any

from stagepipe.plan.curves import Curves
from stagepipe.plan.make import Machine, is_order_point, make_plan
from stagepipe.plan.model import SINK, SOURCE, HopPlan, Plan, ProcessPlan, Role, StagePlan, StretchPlan
from stagepipe.plan.negotiator import Choice, explain, negotiate

if TYPE_CHECKING:
    from stagepipe.plan.calibration import TIMING_HOW, load, measure
    from stagepipe.plan.machine import host, this_machine

__all__ = [
    "SINK",
    "SOURCE",
    "TIMING_HOW",
    "Choice",
    "Curves",
    "HopPlan",
    "Machine",
    "Plan",
    "ProcessPlan",
    "Role",
    "StagePlan",
    "StretchPlan",
    "explain",
    "host",
    "is_order_point",
    "load",
    "make_plan",
    "measure",
    "negotiate",
    "this_machine",
]

_MEASURING = {
    "TIMING_HOW": "calibration",
    "load": "calibration",
    "measure": "calibration",
    "host": "machine",
    "this_machine": "machine",
}


def __getattr__(name: str) -> Any:
    """What measures the machine is loaded when it is asked for: workers need the plan's words alone."""
    if name in _MEASURING:
        return getattr(importlib.import_module(f"stagepipe.plan.{_MEASURING[name]}"), name)
    message = f"module 'stagepipe.plan' has no attribute {name!r}"
    raise AttributeError(message)
