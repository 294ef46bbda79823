"""A spec and a machine become a plan: processes, hops, windows, and why. Starts nothing."""

from stagepipe.plan.calibration import TIMING_HOW, load, measure
from stagepipe.plan.curves import Curves
from stagepipe.plan.machine import host, this_machine
from stagepipe.plan.make import Machine, is_order_point, make_plan
from stagepipe.plan.model import SINK, SOURCE, HopPlan, Plan, ProcessPlan, Role, StagePlan, StretchPlan
from stagepipe.plan.negotiator import Choice, explain, negotiate

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
