"""The costs of a pipeline's processes and hops per source item, from the record of a whole run. Pure.

Other than a probe, a run has all stages at work at once: waits for a CPU are taken out of what they measured.
"""

from __future__ import annotations

from stagepipe.forecast.cost_values import HopCost, PipelineCosts, ProcessCost
from stagepipe.forecast.layout_rules import add_layout_rules
from stagepipe.plan import Plan
from stagepipe.report import ProcessLoad, RunRecord, compute_process_loads


def compute_run_costs(plan: Plan, record: RunRecord) -> PipelineCosts:
    """Compute the costs from the record of a run of `plan`.

    >>> compute_run_costs(plan, record).processes[1].run_ns  # doctest: +SKIP
    3_990_000.0
    """
    items = max(record.items_in, 1)
    *loads, consumer = compute_process_loads(record)
    sides = [_compute_sides(load, items) for load in loads]
    receive_ns = [side.receive_ns for side in sides[1:]]
    receive_ns.append(sum(side.spent_ns for side in consumer.hop_sides) / items)
    costs = PipelineCosts(
        tuple(_compute_process(load, side, items) for load, side in zip(loads, sides, strict=True)),
        tuple(HopCost(side.send_ns, ns) for side, ns in zip(sides, receive_ns, strict=True)),
        consumer.run_ns / items if consumer.is_evidence else 0.0,
    )
    return add_layout_rules(costs, plan)


def _compute_sides(load: ProcessLoad, items: int) -> HopCost:
    """The work of a process on the hop that it sends over, and on the one that it receives from."""
    names = {stage.name for stage in load.member_stages}
    scale = load.scheduled_share / items
    send_ns = sum(side.spent_ns for side in load.hop_sides if side.hop.source in names)
    receive_ns = sum(side.spent_ns for side in load.hop_sides if side.hop.target in names)
    return HopCost(send_ns * scale, receive_ns * scale)


def _compute_process(load: ProcessLoad, sides: HopCost, items: int) -> ProcessCost:
    scheduled = load.scheduled_share if load.is_evidence else 0.0  # what it did with its only part is no steady cost
    slow_ns = min(load.slow_calls_ns, load.run_ns)  # once in a worker: more workers would not share them
    work_ns = (load.work_ns - slow_ns) * scheduled / items
    run_ns = min((load.run_ns - slow_ns) * scheduled / items, work_ns)
    first = load.member_stages[0]
    return ProcessCost(
        name=load.name,
        last_stage=load.member_stages[-1].name,
        run_ns=run_ns,
        call_ns=0.0,
        loop_ns=max(work_ns - run_ns - sides.total_ns, 0.0),
        cpu_ns=load.started_cpu_ns / items if load.is_evidence else 0.0,
        memory_bytes=first.pss_bytes or first.rss_bytes,
        scheduled_fraction=scheduled,
    )
