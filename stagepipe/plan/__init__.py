"""The plan of a run, made from a spec and a machine: processes, hops, windows and the reason for each. Starts nothing.

model                the plan as frozen values: processes, hops, segments
lowering             splits a source and sinks with workers into the stages that run them
planner              makes a plan from a spec, a machine and its cost curves
chunks               whether several items travel in one packet, from a dataset to `Batch`
devices              assigns GPUs to workers
shard                which items of the source belong to a rank
system_requirements  checks the system's limits against what a plan needs
probing              makes the plan of a probe run
probe_sample         what a probe run measures of the items on a hop
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.plan.lowering import lower_sinks, name_sink, set_sink_workers, split_source
    from stagepipe.plan.model import (
        SINK_NAME,
        CachePlan,
        HopPlan,
        ItemIdentities,
        Plan,
        ProcessPlan,
        ProcessRole,
        SegmentPlan,
        StagePlan,
    )
    from stagepipe.plan.planner import make_plan
    from stagepipe.plan.probe_sample import ItemSample, PieceSample, ProbeResult
    from stagepipe.plan.probing import make_probe_plan
    from stagepipe.plan.shard import UNSHARDED, EvenMode, Shard, SubsetShard
    from stagepipe.plan.system_requirements import (
        check_plan_limits,
        check_spec_limits,
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
    "check_plan_limits",
    "check_spec_limits",
    "find_cpu_warnings",
    "find_memory_warnings",
    "lower_sinks",
    "make_plan",
    "make_probe_plan",
    "name_sink",
    "set_sink_workers",
    "split_source",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CachePlan": "model",
        "EvenMode": "shard",
        "HopPlan": "model",
        "ItemIdentities": "model",
        "ItemSample": "probe_sample",
        "PieceSample": "probe_sample",
        "Plan": "model",
        "ProbeResult": "probe_sample",
        "ProcessPlan": "model",
        "ProcessRole": "model",
        "SegmentPlan": "model",
        "SINK_NAME": "model",
        "Shard": "shard",
        "StagePlan": "model",
        "SubsetShard": "shard",
        "UNSHARDED": "shard",
        "check_plan_limits": "system_requirements",
        "check_spec_limits": "system_requirements",
        "find_cpu_warnings": "system_requirements",
        "find_memory_warnings": "system_requirements",
        "lower_sinks": "lowering",
        "make_plan": "planner",
        "make_probe_plan": "probing",
        "name_sink": "lowering",
        "set_sink_workers": "lowering",
        "split_source": "lowering",
    },
)
