"""The plan of a run, made from a spec and a machine: processes, hops, windows and the reason for each. Starts nothing.

model                the plan as frozen values: processes, hops, segments, the shard of a rank
planner              makes the plan of a run or a probe: splits a source and sinks with workers into stages
system_requirements  checks the system's limits against the needs of a plan

Workers, and pipelines before their start, need only the values. The modules that import NumPy are loaded on demand.
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names
from stagepipe.plan.model import (
    SINK_NAME,
    UNSHARDED,
    CachePlan,
    EvenMode,
    HopPlan,
    ItemIdentities,
    ItemSample,
    PieceSample,
    Plan,
    ProbeResult,
    ProcessPlan,
    ProcessRole,
    SegmentPlan,
    Shard,
    StagePlan,
    SubsetShard,
)

if TYPE_CHECKING:
    from stagepipe.plan.planner import (
        WorkerStart,
        lower_sinks,
        make_plan,
        make_probe_plan,
        name_sink,
        set_sink_workers,
        split_source,
    )
    from stagepipe.plan.system_requirements import (
        check_plan_limits,
        check_spec_limits,
        count_slots_that_fit,
        find_cpu_warnings,
        find_memory_warnings,
    )

__all__ = [
    "SINK_NAME",
    "UNSHARDED",
    "CachePlan",
    "EvenMode",
    "HopPlan",
    "ItemIdentities",
    "ItemSample",
    "PieceSample",
    "Plan",
    "ProbeResult",
    "ProcessPlan",
    "ProcessRole",
    "SegmentPlan",
    "Shard",
    "StagePlan",
    "SubsetShard",
    "WorkerStart",
    "check_plan_limits",
    "check_spec_limits",
    "count_slots_that_fit",
    "find_cpu_warnings",
    "find_memory_warnings",
    "lower_sinks",
    "make_plan",
    "make_probe_plan",
    "name_sink",
    "set_sink_workers",
    "split_source",
]

__getattr__ = lazy_names(__name__, __file__)
