"""Costs of made-up chains, for the tests of the forecast."""

import math
from dataclasses import replace

from stagepipe.forecast import PipelineCosts, ResourceBudget
from stagepipe.forecast.cost_values import HopCost, ProcessCost

MB = 10**6
US = 1000


def process(name, run_us, *, cpu_us=None, **more):
    """A process that works `run_us` per item, all of it CPU time unless `cpu_us` is given."""
    values = {"loop_ns": 0.0, "call_ns": 0.0, "memory_bytes": 50 * MB, **more}
    cpu_ns = (run_us if cpu_us is None else cpu_us) * US
    return ProcessCost(name=name, last_stage=name, run_ns=run_us * US, cpu_ns=cpu_ns, **values)


def chain(*processes, hop_us=10):
    """These processes; the first is the source. Each hop costs `hop_us`, half of it on each side, also in CPU time."""
    half_ns = hop_us * US / 2
    first, *rest = processes
    source = replace(first, is_single_worker=True, unfusable_reason="it is the source", cpu_ns=first.cpu_ns + half_ns)
    costs = [source, *(replace(process, cpu_ns=process.cpu_ns + 2 * half_ns) for process in rest)]
    return PipelineCosts(tuple(costs), (HopCost(half_ns, half_ns),) * len(costs))


def batch(run_us=10):
    return process("batch", run_us, is_single_worker=True, unfusable_reason="it restores the order")


def budget(cpus=8, memory_mb=16_000, arena_mb=1000, **more):
    """What workers may use; a fraction of `cpus` is left by others."""
    values = {"machine_cpus": math.ceil(cpus), "memory_bytes": memory_mb * MB, "arena_bytes": arena_mb * MB}
    return ResourceBudget(cpus=float(cpus), **{**values, **more})


def ones(costs):
    return (1,) * len(costs.processes)
