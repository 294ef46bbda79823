"""Estimates the effect of other settings from the measurements of a run. Pure: each estimate is for one change.

The model of `stagepipe plan` (`predict_throughput`) predicts the rate of a layout with and without the change. The
estimate is the run's own rate times their ratio. The verdict offers the best eligible change. An eligible change keeps
the bits, the order, and the isolation of crashes between stages; it fits the CPUs, the memory and the devices; and its
gain is larger than the error of the prediction. Every other change has a reason why it is not eligible.

The estimate for a forced mode of a hop is a lower bound: the measured cost of a large message by pipe is mostly waiting
of both sides for each other, which the change removes. Measured with 2 MB and 0.1 MB by a forced pipe, on a busy
machine: 626 and 1,042 items/s estimated, 867 and 1,116 with `auto`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from stagepipe.core import join_names
from stagepipe.forecast.advice import MIN_GAIN_RATIO, find_best_layout, fuse_neighbours, list_overrides
from stagepipe.forecast.cost_values import HopCost, PipelineCosts, ProcessCost, ResourceBudget, compute_expected_cpus
from stagepipe.forecast.costs import compute_run_costs
from stagepipe.forecast.layout import (
    FusedGroup,
    ProcessLayout,
    compute_cpu_ns,
    compute_work_ns,
    count_max_workers,
    fits_in_memory,
    iter_fusions,
    make_layout,
    predict_throughput,
    with_workers,
)
from stagepipe.plan import Plan, ProcessRole, StagePlan
from stagepipe.report import RunRecord, StageRecord, WhatIf, compute_steady_items_per_s

_MIN_ITEMS: Final = 16
"""The minimum number of items for a verdict."""

_MAX_COUNT_DIFFERENCE: Final = 0.01
"""A stage that passes on another number of items changes the work of the later stages."""

_MIN_EQUAL_RATIO: Final = 0.9
"""A process with this share of the bottleneck's work limits the run too."""

_MAX_WORKER_FACTOR: Final = 4
"""Maximum factor for the number of workers in one step: the measurement says little about larger changes."""

_MIN_RATE_FRACTION: Final = 0.97
"""Fewer workers are chosen if they reach this share of the best rate."""

_MIN_PARTS_TO_SHARE: Final = 8
"""The minimum number of parts of a sink for which more workers help."""

_WINDOW_PER_WORKER: Final = 2
"""Items in flight for each worker: the current one and the next."""

_UNKNOWN_MEMORY_BYTES: Final = 1 << 60
"""Stands for the memory of a machine if the record does not contain it."""

_MAX_THREADS_CPU_SHARE: Final = 0.5
"""Maximum share of a CPU for all threads of a worker: they share the interpreter's lock, and above it they wait."""

_WITHIN_ERROR: Final = "the gain is within the error of the estimate"
_NO_SETTING: Final = "no setting does this: it shows the cost of the stage"


def estimate_changes(plan: Plan, record: RunRecord) -> tuple[WhatIf, ...]:
    """Estimate the effect of single changes, the best first; none if the run was too short to measure its costs.

    >>> estimate_changes(plan, record)[0].overrides  # doctest: +SKIP
    ('stages.decode.workers=3',)
    """
    measured_items = min((stage.items + stage.passed_by for stage in record.stages), default=0)
    if record.items_in < _MIN_ITEMS or not measured_items or len(record.stages) == 1:
        return ()
    return _Estimator(plan, record).estimate()


class _Estimator:
    def __init__(self, plan: Plan, record: RunRecord) -> None:
        self._plan = plan
        self._record = record
        self._costs = compute_run_costs(plan, record)
        self._budget = ResourceBudget(
            cpus=min(compute_expected_cpus(record.cpus - record.other_cpus, record.cpus), record.cpu_quota or math.inf),
            machine_cpus=record.cpus,
            memory_bytes=record.host.memory_bytes or _UNKNOWN_MEMORY_BYTES,
            arena_bytes=plan.memory_bytes,
            gpus=len(
                {
                    device
                    for process in plan.processes
                    for devices in process.visible_devices or ()
                    for device in devices.split(",")
                }
            ),
        )
        self._first_stages = {stage.name: stage for stage in record.stages}
        self._layout = make_layout(tuple(self._first_stages[process.name].workers for process in plan.processes))
        self._predicted = self._predict(self._layout)
        self._measured = compute_steady_items_per_s(record)
        work_ns = [compute_work_ns(group, self._costs) / group.workers for group in self._layout]
        self._limit = max(range(len(work_ns)), key=work_ns.__getitem__)
        self._limits = [i for i, ns in enumerate(work_ns) if ns >= _MIN_EQUAL_RATIO * work_ns[self._limit]]

    def estimate(self) -> tuple[WhatIf, ...]:
        """Return the estimates, the best first."""
        simple = [*self._add_threads(), *self._add_workers(), *self._fuse()]
        best = max((estimate.items_per_s for estimate in simple if estimate.is_eligible), default=0.0)
        estimates = [
            *simple,
            *(both for both in self._change_layout() if both.items_per_s >= MIN_GAIN_RATIO * best),
            *self._separate(),
            *self._free_mode(),
            *self._leave_out(),
        ]
        return tuple(sorted(estimates, key=lambda estimate: -estimate.gain))

    def _predict(self, layout: ProcessLayout, costs: PipelineCosts | None = None) -> float:
        return predict_throughput(layout, costs or self._costs, self._budget.cpus).items_per_s

    def _make(self, kind: str, change: str, overrides: tuple[str, ...], predicted: float, reason: str = "") -> WhatIf:
        ratio = predicted / self._predicted
        gain_low = round(ratio / MIN_GAIN_RATIO - 1, 3)
        return WhatIf(
            kind=kind,
            change=change,
            overrides=overrides,
            items_per_s=round(self._measured * ratio, 1),
            gain=round(ratio - 1, 3),
            gain_low=gain_low,
            ineligible_reason=reason or ("" if gain_low > 0 else _WITHIN_ERROR),
        )

    def _make_layout_change(self, kind: str, layout: ProcessLayout, reason: str = "") -> WhatIf:
        overrides = self._widen_bounds(list_overrides(self._layout, layout, self._costs), layout)
        workers = sum(group.workers for group in layout)
        window = _WINDOW_PER_WORKER * workers
        if self._record.is_window_fixed and window > self._record.window_items and workers > len(layout):
            overrides = (*overrides, f"window={window}")
        reason = reason or self._explain_scaling(layout) or self._explain_crashes(layout)
        if not fits_in_memory(layout, self._costs, self._budget):
            reason = reason or "its workers do not fit into the memory"
        return self._make(kind, self._describe(layout), overrides, self._predict(layout), reason)

    def _describe(self, layout: ProcessLayout) -> str:
        """Describe a layout, such as `a and b fused into source, decode with 3 workers`."""
        before = {group.first_process: group.workers for group in self._layout}
        texts = []
        rows = [process.first_stage.part_of or process.name for process in self._plan.processes]
        for group in layout:
            name, *members = rows[group.first_process : group.last_process + 1]
            fused = [member for member in members if member != name]
            if fused:
                texts.append(f"{join_names(fused)} fused into {name}")
            elif members:
                texts.append(f"{name} in one process")
            if group.workers != before[group.first_process]:
                is_scaled = self._first_stages[self._plan.processes[group.first_process].name].max_workers > 0
                texts.append(f"{name} with {'up to ' * is_scaled}{group.workers:,} workers")
        return ", ".join(texts)

    def _list_scaled(self, layout: ProcessLayout) -> list[tuple[StageRecord, FusedGroup]]:
        """List the processes that get more workers in a layout, and whose number of workers adapts to the work."""
        before = {group.first_process: group.workers for group in self._layout}
        grown = [group for group in layout if group.workers > before[group.first_process]]
        firsts = [(self._first_stages[self._plan.processes[group.first_process].name], group) for group in grown]
        return [(stage, group) for stage, group in firsts if stage.max_workers]

    def _widen_bounds(self, overrides: tuple[str, ...], layout: ProcessLayout) -> tuple[str, ...]:
        """Return the overrides, with wider bounds instead of a fixed number where the number adapts to the work."""
        bounds = {
            f"{stage.config_path or f'stages.{stage.name}'}.workers={group.workers}": stage.min_workers
            for stage, group in self._list_scaled(layout)
        }
        return tuple(
            f"{override.partition('=')[0]}={bounds[override]}-{override.partition('=')[2]}"
            if override in bounds
            else override
            for override in overrides
        )

    def _explain_scaling(self, layout: ProcessLayout) -> str:
        """Explain that the run itself gives a stage more workers, within its bounds."""
        for stage, _ in self._list_scaled(layout):
            if stage.workers < stage.max_workers:
                return f"the run itself adds workers to {stage.row}, up to {stage.max_workers}"
        return ""

    def _explain_crashes(self, layout: ProcessLayout) -> str:
        """Name a stage of a fused process that died in this run: the others would die with it."""
        crashes = {stage.name: stage.crashes for stage in self._record.stages if stage.crashes}
        for group in layout:
            members = self._plan.processes[group.first_process : group.last_process + 1]
            if len(members) > 1:
                for stage in (stage for process in members for stage in process.stages if stage.name in crashes):
                    return f"{stage.name} died {crashes[stage.name]:,} times; in one process the others die with it"
        return ""

    def _add_workers(self) -> Iterator[WhatIf]:
        """More workers for the bottleneck, and for all processes with about as much work together."""
        for indices in ([self._limit], self._limits) if len(self._limits) > 1 else ([self._limit],):
            if all(self._may_have_workers(index) for index in indices):
                yield self._make_layout_change("workers", self._grow(indices), self._explain_parts(indices))

    def _add_threads(self) -> Iterator[WhatIf]:
        """More threads for the bottleneck, if it has threads. The interpreter's lock limits them to about one CPU."""
        group, process = self._layout[self._limit], self._plan.processes[self._limit]
        if process.thread_count and self._may_have_workers(self._limit):
            cpu_share = compute_cpu_ns(group, self._costs) / compute_work_ns(group, self._costs)
            workers = self._grow([self._limit])[self._limit].workers
            factor = int(min(workers / group.workers, _MAX_THREADS_CPU_SHARE / max(cpu_share, 0.01)))
            if factor > 1:
                concurrency = factor * process.thread_count
                yield self._make(
                    "concurrency",
                    f"{process.first_stage.row} with a concurrency of {concurrency:,}",
                    (f"{process.first_stage.config_path}.concurrency={concurrency}",),
                    self._predict(with_workers(self._layout, self._limit, factor * group.workers)),
                )

    def _may_have_workers(self, index: int) -> bool:
        group = self._layout[index]
        hops = self._plan.hops[max(index - 1, 0) : index + 1]
        has_forced_pipe = any(hop.mode == "pipe" for hop in hops)  # it takes any size only between single workers
        return not has_forced_pipe and group.workers < count_max_workers(group, self._costs, self._budget)

    def _explain_parts(self, indices: Sequence[int]) -> str:
        """Explain that a sink wrote too few parts for more workers."""
        parts = min((self._count_items(index) for index in indices if self._costs.processes[index].is_sink), default=99)
        if parts >= _MIN_PARTS_TO_SHARE:
            return ""
        return f"it wrote {parts} part{'' if parts == 1 else 's'}, each in one worker; set `part_items` to less"

    def _count_items(self, index: int) -> int:
        name = self._plan.processes[index].name
        return next(stage.items for stage in self._record.stages if stage.name == name)

    def _grow(
        self, indices: Sequence[int], costs: PipelineCosts | None = None, base: ProcessLayout = ()
    ) -> ProcessLayout:
        """Return the layout with the fewest added workers of these processes that comes close to their best rate."""
        costs, base = costs or self._costs, base or self._layout
        layouts = [base]
        while True:
            layout = layouts[-1]
            open_indices = [i for i in indices if layout[i].workers < self._count_most_workers(base[i], costs)]
            if not open_indices:
                break
            index = max(open_indices, key=lambda i: compute_work_ns(layout[i], costs) / layout[i].workers)
            layouts.append(with_workers(layout, index, layout[index].workers + 1))
        rates = [self._predict(layout, costs) for layout in layouts]
        best = max(rates[1:], default=0.0)
        first = len(indices)  # at least one step for each of them
        return next(
            (
                layout
                for layout, rate in zip(layouts[first:], rates[first:], strict=True)
                if rate >= _MIN_RATE_FRACTION * best
            ),
            layouts[-1],
        )

    def _count_most_workers(self, group: FusedGroup, costs: PipelineCosts) -> int:
        return min(count_max_workers(group, costs, self._budget), _MAX_WORKER_FACTOR * group.workers)

    def _fuse(self) -> Iterator[WhatIf]:
        """The best pair of neighbours in one process, and all neighbours for which fusing pays."""
        options = [
            layout
            for index, layout in iter_fusions(self._layout, self._costs)
            if not self._costs.processes[index].is_sink
        ]
        if not options:
            return
        pair = max(options, key=self._predict)
        yield self._make_layout_change("fuse", pair)
        chain = fuse_neighbours(self._layout, self._costs, self._budget)
        if chain not in {pair, self._layout} and self._predict(chain) > self._predict(pair):
            yield self._make_layout_change("fuse", chain)

    def _change_layout(self) -> Iterator[WhatIf]:
        """Fused neighbours and more workers together, if that gains a tenth over the better of the two."""
        before = {group.first_process: group.workers for group in self._layout}
        best = tuple(
            replace(group, workers=min(group.workers, _MAX_WORKER_FACTOR * before[group.first_process]))
            for group in find_best_layout(self._layout, self._costs, self._budget)
        )
        if len(best) < len(before) and any(group.workers > before[group.first_process] for group in best):
            yield self._make_layout_change("layout", best)

    def _separate(self) -> Iterator[WhatIf]:
        """The costliest fused stage of the bottleneck, and the stages after it, in their own process."""
        process = self._plan.processes[self._limit]
        times_ns = {stage.name: stage.run_histogram.sum_ns for stage in self._record.stages}
        fused = process.stages[1:]
        if not fused or process.role is ProcessRole.ORDER_POINT:
            return
        stage = max(fused, key=lambda each: times_ns[each.name])
        costs = self._split(process.stages.index(stage), [times_ns[each.name] for each in process.stages])
        index = self._limit + 1
        base = (
            *(group for group in self._layout[:index]),
            FusedGroup(index, index),
            *(
                replace(g, first_process=g.first_process + 1, last_process=g.last_process + 1)
                for g in self._layout[index:]
            ),
        )
        layout = base
        if not costs.processes[index].is_single_worker:
            grown = self._grow([index], costs, base)
            layout = grown if self._predict(grown, costs) >= MIN_GAIN_RATIO * self._predict(base, costs) else base
        workers = layout[index].workers
        overrides = [f"{stage.config_path}.fuse=false"]
        overrides += [f"{stage.config_path}.workers={workers}"] if workers > 1 else []
        change = f"{stage.name} in its own process" + (f" with {workers} workers" if workers > 1 else "")
        yield self._make("separate", change, tuple(overrides), self._predict(layout, costs))

    def _split(self, at: int, times_ns: Sequence[int]) -> PipelineCosts:
        """Return the costs with the stages of the bottleneck from `at` on in a process after it."""
        index = self._limit
        process, stages = self._costs.processes[index], self._plan.processes[index].stages
        share = sum(times_ns[at:]) / max(sum(times_ns), 1)
        hop = max(self._costs.hops[max(index - 1, 0) : index + 1], key=lambda each: each.total_ns)
        parts = [self._take(process, 1 - share, hop), self._take(process, share, hop)]
        parts[0] = replace(parts[0], last_stage=stages[at - 1].name)
        parts[1] = replace(
            parts[1],
            name=stages[at].name,
            is_single_worker=any(_runs_once(stage) for stage in stages[at:]),
            unfusable_reason="",
            has_own_threads=False,
            max_workers=None,
            config_path=stages[at].config_path,
        )
        return replace(
            self._costs,
            processes=(*self._costs.processes[:index], *parts, *self._costs.processes[index + 1 :]),
            hops=(*self._costs.hops[:index], hop, *self._costs.hops[index:]),
        )

    @staticmethod
    def _take(process: ProcessCost, share: float, hop: HopCost) -> ProcessCost:
        """Return a share of a process, with one more side of a hop."""
        return replace(
            process,
            run_ns=process.run_ns * share,
            call_ns=process.call_ns * share,
            cpu_ns=process.cpu_ns * share + hop.total_ns / 2,
        )

    def _free_mode(self) -> Iterator[WhatIf]:
        """The forced hop that gains the most from `auto`."""
        options = []
        for index, hop in enumerate(self._plan.hops[:-1]):
            ratio = self._compare_modes(index)
            if hop.mode != "auto" and ratio < 1:
                cost = self._costs.hops[index]
                cheaper = HopCost(cost.send_ns * ratio, cost.receive_ns * ratio)
                hops = (*self._costs.hops[:index], cheaper, *self._costs.hops[index + 1 :])
                options.append((self._predict(self._layout, self._costs.with_hops(hops)), index))
        if options:
            predicted, index = max(options)
            target = self._plan.processes[index + 1].first_stage
            override = f"{target.config_path}.transport=auto" if target.transport != "auto" else "transport.mode=auto"
            yield self._make(
                "mode", f"auto transport into {self._plan.hops[index].target} (at least)", (override,), predicted
            )

    def _compare_modes(self, index: int) -> float:
        """The predicted cost of a hop in the other mode, relative to the forced one."""
        name = self._plan.processes[index].stages[-1].name
        predicted = next(hop.predicted for hop in self._record.hops if hop.source == name)
        costs_ns = {"pipe": predicted.pipe_ns, "shared_memory": predicted.shared_memory_ns}
        forced_ns = costs_ns.pop(self._plan.hops[index].mode, 0)
        return min(costs_ns.values()) / forced_ns if forced_ns else 1.0

    def _leave_out(self) -> Iterator[WhatIf]:
        """The bottleneck left out: the maximum gain of a faster function."""
        limit, processes = self._limit, self._costs.processes
        plan = self._plan.processes[limit]
        if limit == 0 or plan.role is not ProcessRole.STAGE or processes[limit].is_sink or not self._keeps_count(limit):
            return
        costs = replace(
            self._costs,
            processes=(*processes[:limit], *processes[limit + 1 :]),
            hops=(*self._costs.hops[: limit - 1], *self._costs.hops[limit:]),
        )
        layout = make_layout(tuple(group.workers for group in (*self._layout[:limit], *self._layout[limit + 1 :])))
        names = " and ".join(stage.name for stage in plan.stages)
        yield self._make("without", f"without {names}", (), self._predict(layout, costs), _NO_SETTING)

    def _keeps_count(self, index: int) -> bool:
        """Whether a process sends as many messages as it receives."""
        hops = {hop.source: hop.messages.total for hop in self._record.hops}
        before, after = (hops[self._plan.processes[number].stages[-1].name] for number in (index - 1, index))
        return abs(after - before) <= _MAX_COUNT_DIFFERENCE * before


def _runs_once(stage: StagePlan) -> bool:
    """Whether a stage may run in one worker only."""
    return stage.stateful or stage.is_order_point
