"""The whole grid of `benchmarks.verdicts.grid` from the records of the runs that were made. Pure.

A combination that has not run is taken from the run with the same sink, work and trouble whose size is nearest. What
was counted is scaled to the other number of items and of parts:

- Start-up, the time lost to restarts, and the end of a sink's job stay as they were.
- Time in functions, on hops and blocked, CPU time, messages and bytes are proportional to the items.
- A sink pays for its first part (an import) once, and so much an item as it did in the runs with most parts. With three
  parts or more it writes while the stages work; with fewer, afterwards.
- Waits for input are the rest of each worker's time.

The estimates (`what_if`) come from the scaled counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median

from msgspec.structs import replace

from benchmarks.verdicts.grid import Combination, find_writer, make_config
from stagepipe import Pipeline
from stagepipe.costs import MADE_UP_CURVES
from stagepipe.forecast import estimate_changes
from stagepipe.machine import Machine
from stagepipe.plan import Plan, lower_sinks, make_plan
from stagepipe.report import ConsumerReport, HopRecord, RunRecord, Series, StageRecord, WorkerLoad
from stagepipe.report.utilization import compute_lost_ns, compute_startup_ns
from stagepipe.timing import Histogram

_MIN_PARTS = 3
_MIN_BASE_ITEMS = 1_000
_MAX_POINTS = 24
_MAX_COMMIT_SHARE = 0.05


@cache
def plan_combination(each: Combination) -> Plan:
    """Plan it, as a run on two CPUs with 8 GiB."""
    spec = lower_sinks(Pipeline(make_config(each, "unused")).spec)
    return make_plan(spec, Machine(2, 8 << 30), MADE_UP_CURVES)


def replay(each: Combination, records: Mapping[Combination, RunRecord]) -> RunRecord:
    """Return the record of a combination: the one of its run, or a scaled one; the estimates are new."""
    base = _find_base(each, records)
    record = records[base]
    if base.sink != each.sink:
        record, base = _leave_out_sink(record), dataclasses.replace(base, sink="none")
    if base != each:
        record = _Scaled(base, each, record, _measure_item_ns(each.sink, records)).make_record()
    trouble = "kill" if each.trouble == "kill" else "none"
    same_plan = dataclasses.replace(each, items=1_000, trouble=trouble)
    return replace(record, what_if=estimate_changes(plan_combination(same_plan), record))


def _find_base(each: Combination, records: Mapping[Combination, RunRecord]) -> Combination:
    """The run with the same sink, work and trouble: itself, or the one of the nearest size, rather with its parts.

    Where that is of a few items only, most of what was counted is of its start: then it is one with a sink.
    """
    same = [run for run in records if (run.work, run.trouble) == (each.work, each.trouble)]
    own = [run for run in same if run.sink == each.sink and (run == each or run.items >= _MIN_BASE_ITEMS)]
    others = [run for run in same if run.items >= _MIN_BASE_ITEMS] if each.sink == "none" else []
    return min(own or others, key=lambda run: (abs(math.log(run.items / each.items)), run.parts != each.parts))


def _leave_out_sink(record: RunRecord) -> RunRecord:
    """The run as it was without the processes and the hops of its sink."""
    stages = tuple(stage for stage in record.stages if stage.config_path != "sink")
    names = {stage.name for stage in stages}
    hops = [hop for hop in record.hops if hop.source in names]
    started_ns = compute_startup_ns(record)
    return replace(
        record,
        stages=stages,
        hops=(*hops[:-1], replace(hops[-1], target="sink")),
        order_point_names=(),
        items_out=record.items_in,
        first_item_ns=started_ns,
        consumer=ConsumerReport(
            wait_ns=record.consumer.wait_ns,
            first_wait_ns=min(started_ns, record.consumer.wait_ns),
            outside_loop_ns=record.consumer.outside_loop_ns,
        ),
    )


def _measure_item_ns(sink: str, records: Mapping[Combination, RunRecord]) -> float:
    """What a sink takes to write an item, without its first part: the median of the runs with at least three parts."""
    costs = []
    for run, record in records.items():
        writer = find_writer(record) if run.sink == sink else None
        if writer is not None and writer.items >= _MIN_PARTS and run.items >= 1_000:
            costs.append(writer.run_histogram.percentile_ns(50) / run.part_items)
    return median(costs) if costs else 0.0


@dataclass(frozen=True)
class _Times:
    """The parts of the time of a run, in ns: their sum is its wall time."""

    startup: int
    lost: int
    flowing: int
    drain: int
    outside: int


class _Scaled:
    def __init__(self, base: Combination, each: Combination, record: RunRecord, item_ns: float) -> None:
        self._each = each
        self._record = record
        self._factor = each.items / base.items
        self._writer = find_writer(record)
        self._parts_before = self._writer.items if self._writer else 0
        self._parts = math.ceil(each.items / each.part_items) if self._writer else 0
        self._part_factor = self._parts / max(self._parts_before, 1) if self._writer else self._factor
        self._first_ns, self._written_ns = self._compute_writing(base, item_ns)
        self._times = self._compute_times()
        self._held_ns = self._compute_held_ns()
        self._wall_ns = sum(dataclasses.astuple(self._times))

    def _compute_writing(self, base: Combination, item_ns: float) -> tuple[int, int]:
        """What the writer's first part takes more than the others, and all of its work."""
        if self._writer is None:
            return 0, 0
        first_ns = max(self._writer.busy_ns - round(item_ns * base.items), 0)
        return first_ns, first_ns + round(item_ns * self._each.items)

    def _compute_times(self) -> _Times:
        record, writer = self._record, self._writer
        startup = compute_startup_ns(record)
        lost_before = compute_lost_ns(record)
        lost = self._scale_lost_ns(lost_before)
        outside = max(record.consumer.outside_loop_ns, 0)
        drain = writer.busy_ns if writer and self._parts_before < _MIN_PARTS else 0
        flowing = max(record.wall_ns - startup - lost_before - outside - drain, 1)
        flowing = round(flowing * self._factor)
        if self._parts >= _MIN_PARTS:
            drain = self._written_ns // self._parts
            flowing = max(flowing, self._written_ns - drain)
        elif writer:
            drain = self._written_ns
        return _Times(startup, lost, flowing, drain, outside)

    def _scale_lost_ns(self, lost_ns: int) -> int:
        """The time to build the stages again, and to repeat the items since the last part."""
        died = {restart.stage for restart in self._record.restarts}
        built_ns = min(sum(stage.starting_ns for stage in self._record.stages if stage.row in died), lost_ns)
        return built_ns + round((lost_ns - built_ns) * self._factor) if self._writer else lost_ns

    def _compute_held_ns(self) -> int:
        """How long the others were blocked because the writer had not started."""
        record = self._record
        started = tuple(replace(each, starting_ns=0) if each is self._writer else each for each in record.stages)
        return self._times.startup - compute_startup_ns(replace(record, stages=started))

    def make_record(self) -> RunRecord:
        record, consumer = self._record, self._scale_consumer()
        first_item_ns = self._first_item_ns()
        end_ns = self._wall_ns - self._times.outside
        return replace(
            record,
            items_in=self._each.items,
            items_out=self._parts or self._each.items,
            samples_out=self._each.items,
            wall_ns=self._wall_ns,
            first_item_ns=first_item_ns,
            source_end_ns=self._source_end_ns(),
            delivery_points=self._deliver(first_item_ns, end_ns),
            consumer=consumer,
            stages=tuple(self._scale_stage(stage) for stage in record.stages),
            hops=tuple(self._scale_hop(hop) for hop in record.hops),
            restarts=tuple(
                replace(restart, lost_ns=max(round(restart.lost_ns * self._factor), self._times.lost))
                for restart in record.restarts
            ),
            series=self._scale_series(record.series),
        )

    def _source_end_ns(self) -> int:
        before = self._times.startup + self._times.lost
        latest = self._wall_ns - self._times.outside - self._times.drain
        return max(min(round(before + (self._record.source_end_ns - before) * self._factor), latest), 1)

    def _first_item_ns(self) -> int:
        if self._writer is None:
            return min(self._record.first_item_ns, self._wall_ns)
        if self._parts < _MIN_PARTS:
            return self._wall_ns - self._times.outside
        return self._times.startup + self._first_ns + (self._times.flowing + self._written_ns) // self._parts

    def _deliver(self, first_ns: int, end_ns: int) -> tuple[tuple[int, int], ...]:
        count = min(self._parts or self._each.items, _MAX_POINTS)
        step_ns = max(end_ns - first_ns, 0) / max(count - 1, 1)
        return tuple((round(first_ns + i * step_ns), self._each.items * (i + 1) // count) for i in range(count))

    def _scale_consumer(self) -> ConsumerReport:
        consumer = self._record.consumer
        busy_ns = consumer.busy_ns * self._part_factor
        if self._writer is not None:  # commits: at most a twentieth of the time
            busy_ns = min(busy_ns, max(consumer.busy_ns, _MAX_COMMIT_SHARE * self._wall_ns))
        other_ns = self._record.wall_ns - consumer.wait_ns - consumer.busy_ns
        first_wait_ns = self._first_item_ns() - max(self._record.first_item_ns - consumer.first_wait_ns, 0)
        wait_ns = max(self._wall_ns - round(busy_ns) - other_ns, first_wait_ns)
        items = self._each.items if consumer.items else 0
        return replace(
            consumer, busy_ns=round(busy_ns), wait_ns=wait_ns, first_wait_ns=max(first_wait_ns, 0), items=items
        )

    def _scale_stage(self, stage: StageRecord) -> StageRecord:
        wall_ns = stage.wall_ns + (self._wall_ns - self._record.wall_ns) * stage.workers
        if stage is self._writer:
            return self._scale_writer(stage, wall_ns)
        overhead_ns = stage.wall_ns - stage.starting_ns - stage.busy_ns - stage.starved_ns - stage.blocked_ns
        idle_ns = new_idle_ns = 0
        if stage is self._record.stages[0]:  # what it does after its end counts as overhead
            hop_ns = sum(each.cost_histogram.sum_ns for each in self._record.hops if each.source == stage.name)
            idle_ns = max(min(self._record.wall_ns - self._record.source_end_ns, overhead_ns - hop_ns), 0)
            new_idle_ns = (self._wall_ns - self._source_end_ns()) if idle_ns else 0
        work_ns = max(overhead_ns - idle_ns, 0)
        held_ns = min(self._times.lost + self._held_ns, stage.blocked_ns)
        busy_ns, new_work_ns = round(stage.busy_ns * self._factor), round(work_ns * self._factor) + new_idle_ns
        rest_ns = max(wall_ns - stage.starting_ns - busy_ns - new_work_ns, 0)
        blocked_ns = min(round((stage.blocked_ns - held_ns) * self._factor) + held_ns, rest_ns)
        started_ns = max(stage.cpu_ns - stage.starting_ns, min(stage.cpu_ns, stage.busy_ns + work_ns))
        loads = tuple(
            WorkerLoad(items=round(load.items * self._factor), busy_ns=round(load.busy_ns * self._factor))
            for load in stage.worker_loads
        )
        return replace(
            stage,
            items=max(round(stage.items * self._factor), self._each.items),
            wall_ns=wall_ns,
            busy_ns=busy_ns,
            blocked_ns=blocked_ns,
            starved_ns=rest_ns - blocked_ns,
            cpu_ns=round(stage.cpu_ns - started_ns + started_ns * self._factor),
            cpu_wait_ns=round(stage.cpu_wait_ns * self._factor),
            repeated_ns=round(stage.repeated_ns * self._factor),
            run_histogram=_scale_histogram(stage.run_histogram, self._factor),
            worker_loads=loads,
        )

    def _scale_writer(self, stage: StageRecord, wall_ns: int) -> StageRecord:
        ratio = self._written_ns / max(stage.busy_ns, 1)
        overhead_ns = stage.wall_ns - stage.starting_ns - stage.busy_ns - stage.starved_ns - stage.blocked_ns
        overhead_ns = round(max(overhead_ns, 0) * self._factor)
        rest_ns = max(wall_ns - stage.starting_ns - self._written_ns - overhead_ns, 0)
        part_ns = (self._written_ns - self._first_ns) // self._parts
        started_ns = min(stage.cpu_ns, stage.starting_ns)
        parts_ns = [self._first_ns + part_ns] + [part_ns] * (self._parts - 1)
        return replace(
            stage,
            items=self._parts,
            wall_ns=wall_ns,
            busy_ns=self._written_ns,
            blocked_ns=0,
            starved_ns=rest_ns,
            cpu_ns=started_ns + round((stage.cpu_ns - started_ns) * ratio),
            cpu_wait_ns=round(stage.cpu_wait_ns * ratio),
            run_histogram=Histogram.from_values_ns(parts_ns),
            worker_loads=(WorkerLoad(items=self._parts, busy_ns=self._written_ns),),
        )

    def _scale_hop(self, hop: HopRecord) -> HopRecord:
        """The hop into the writer carries parts, whose cost is that of their items."""
        name = self._writer.name if self._writer else ""
        cost_factor = self._part_factor if hop.source == name else self._factor
        factor = self._part_factor if name in {hop.source, hop.target} else self._factor
        fields = {name: round(getattr(hop.messages, name) * factor) for name in hop.messages.__struct_fields__}
        amounts = {name: round(getattr(hop.bytes, name) * self._factor) for name in hop.bytes.__struct_fields__}
        phases = {name: _scale_histogram(each, cost_factor) for name, each in hop.phase_histograms.items()}
        return replace(
            hop,
            messages=replace(hop.messages, **fields),
            bytes=replace(hop.bytes, **amounts),
            cost_histogram=_scale_histogram(hop.cost_histogram, cost_factor),
            phase_histograms=phases,
            saved_ns=round(hop.saved_ns * factor),
        )

    def _scale_series(self, series: Series) -> Series:
        """The same shares. The rates, which tell when the stages ended, are left out."""
        ratio = self._wall_ns / self._record.wall_ns
        return replace(
            series,
            times_ns=tuple(round(time_ns * ratio) for time_ns in series.times_ns),
            stages=tuple(replace(stage, items_per_s=()) for stage in series.stages),
        )


def _scale_histogram(histogram: Histogram, factor: float) -> Histogram:
    """The same durations, `factor` times as often; at least once if there was one."""
    counts = (histogram.counts * factor).round().astype(histogram.counts.dtype)
    if histogram.count and not counts.sum():
        counts[histogram.counts.argmax()] = 1
    return Histogram(counts, round(histogram.sum_ns * factor), histogram.max_ns)
