"""How many items reach each process of a chain per source item, from the record of a probe. Pure.

A probe ends while items are on their way, so the number that a process has had says less than what each process before
it makes of an item. And a stage that got nothing at first, because a filter dropped the first items, gets more then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stagepipe.forecast.cost_values import HopCost, PipelineCosts
from stagepipe.forecast.sink_costs import SinkCost
from stagepipe.plan import Plan, ProcessPlan, ProcessRole
from stagepipe.report import RunRecord


@dataclass(frozen=True)
class ItemFlow:
    """Factors that turn counts of a probe into those of a long run: of each process, each hop, and the consumer."""

    processes: tuple[float, ...]
    hops: tuple[float, ...]
    consumer: float

    def scale(self, costs: PipelineCosts) -> PipelineCosts:
        """Copy costs per source item of the probe as those of a long run."""
        processes = tuple(
            replace(
                process,
                run_ns=process.run_ns * factor,
                call_ns=process.call_ns * factor,
                loop_ns=process.loop_ns * factor,
                cpu_ns=process.cpu_ns * factor,
            )
            for process, factor in zip(costs.processes, self.processes, strict=True)
        )
        hops = tuple(
            HopCost(hop.send_ns * factor, hop.receive_ns * factor)
            for hop, factor in zip(costs.hops, self.hops, strict=True)
        )
        return replace(
            costs,
            processes=processes,
            hops=hops,
            sink_ns=costs.sink_ns * self.consumer,
            sink_waiting_ns=costs.sink_waiting_ns * self.consumer,
        )


def compute_item_flow(
    plan: Plan, record: RunRecord, sinks: Mapping[str, SinkCost], items_before: Mapping[str, int]
) -> ItemFlow:
    """Compute the factors. `items_before`: what the source had sent when a stage got its first item, if it was late."""
    source_items = max(record.items_in, 1)
    stages = {stage.name: stage for stage in record.stages}
    messages = {hop.source: hop.messages.total for hop in record.hops}
    factors: list[float] = []
    hop_factors: list[float] = []
    ratio = parts_ratio = 1.0  # items that reach a process, to those of the source
    for process in plan.processes:
        stage = stages[process.name]
        received = stage.items + stage.passed_by if factors else source_items
        ratio_before = ratio
        late = items_before.get(process.name, source_items)
        if late < source_items and received > 1:
            ratio = (received - 1) / (source_items - late)
        if factors:
            hop_factors.append(factors[-1] * _divide(ratio, ratio_before))
        sink = sinks.get(process.name)
        if sink is not None:  # its cost is that of the items in its parts
            factors.append(_divide(parts_ratio * source_items, sink.items))
            continue
        factors.append(_divide(ratio * source_items, received))
        if process.first_stage.sink_path:
            parts_ratio = ratio
        elif len(factors) > 1:
            ratio *= _divide_output(process, received, messages[process.stages[-1].name])
    consumer = factors[-1] if sinks else _divide(ratio * source_items, record.items_out)
    return ItemFlow(tuple(factors), (*hop_factors, factors[-1]), consumer)


def describe_late_stages(record: RunRecord, items_before: Mapping[str, int]) -> tuple[str, ...]:
    """Say which stage got its first item late; those after it did so for the same reason."""
    return tuple(
        f"{name} got its first item after {items:,} of {record.items_in:,} source items: the forecast begins there"
        for name, items in list(items_before.items())[:1]
    )


def _divide_output(process: ProcessPlan, received: int, sent: int) -> float:
    """What a process makes of an item. The items of a group that it has begun do not count."""
    if process.sends_chunks:  # one message for many items
        return 1.0
    group_items = process.first_stage.items_per_output
    if process.role is ProcessRole.ORDER_POINT and group_items > 1 and sent == received // group_items:
        return 1 / group_items
    return _divide(sent, received)


def _divide(value: float, count: float) -> float:
    return value / count if count else 1.0
