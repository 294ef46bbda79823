"""A spec and a machine become a plan: processes, hops, windows, and why. Starts nothing but what measures the machine.

model, make     what will run (machine, devices, shard: on what, and whose part of the source)
limits          what the system allows, and what a plan needs of it
curves          what carrying a message costs here, by size and way
negotiator      pipe or shared memory, and why; learning: what a hop really paid corrects it
calibration/    measuring the machine, and where the curves are kept
bench/          the same at length, beside multiprocessing's ways
outlook/        `stagepipe plan`: costs from a few items, the pace they foretell, advice
"""

import importlib
from typing import TYPE_CHECKING, Any

from stagepipe.plan.curves import Curves
from stagepipe.plan.learning import ENOUGH, Change, Forecast, Seen, correct, foretell, refine, seen_of
from stagepipe.plan.make import Machine, is_order_point, make_plan
from stagepipe.plan.model import SINK, SOURCE, HopPlan, Plan, ProcessPlan, Role, StagePlan, StretchPlan
from stagepipe.plan.negotiator import Choice, Decision, Part, decide, negotiate
from stagepipe.plan.shard import WHOLE, Chosen, Even, Shard

if TYPE_CHECKING:
    from stagepipe.plan.calibration import TIMING_HOW, load, measure
    from stagepipe.plan.machine import host, this_machine

__all__ = [
    "ENOUGH",
    "SINK",
    "SOURCE",
    "TIMING_HOW",
    "WHOLE",
    "Change",
    "Choice",
    "Chosen",
    "Curves",
    "Decision",
    "Even",
    "Forecast",
    "HopPlan",
    "Machine",
    "Part",
    "Plan",
    "ProcessPlan",
    "Role",
    "Seen",
    "Shard",
    "StagePlan",
    "StretchPlan",
    "correct",
    "decide",
    "foretell",
    "host",
    "is_order_point",
    "load",
    "make_plan",
    "measure",
    "negotiate",
    "refine",
    "seen_of",
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
