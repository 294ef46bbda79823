"""What other settings would have given, from what a run has measured. Pure: estimates, each of one change alone.

The rate of a layout is predicted with and without the change; the run's own rate times their ratio is the estimate.

A forced mode of a hop is estimated as at least so much: what a large message costs by pipe is mostly waiting of both
sides for each other, which the rate with the change no longer has. Measured with 2 MB and 0.1 MB by a forced pipe, on a
busy machine: 626 and 1,042 items/s estimated, 867 and 1,116 with `auto`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from stagepipe.forecast.advice import list_overrides
from stagepipe.forecast.budget import compute_expected_cpus
from stagepipe.forecast.cost_values import HopCost, PipelineCosts
from stagepipe.forecast.run_costs import compute_run_costs
from stagepipe.forecast.throughput import (
    ProcessLayout,
    compute_work_ns,
    iter_fusions,
    make_layout,
    predict_throughput,
    with_workers,
)
from stagepipe.plan import Plan, ProcessRole
from stagepipe.report import RunRecord, WhatIf, compute_steady_samples_per_s

_MIN_ITEMS: Final = 64
"""Of fewer items too many are the first of a worker, which load and allocate."""

_MAX_COUNT_DIFFERENCE: Final = 0.01
"""A stage that passes on another number of items changes what the later ones have to do."""


def estimate_changes(plan: Plan, record: RunRecord) -> tuple[WhatIf, ...]:
    """Estimate what one change would give, the best first; none if the run was too short to measure its costs.

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
        self._cpus = compute_expected_cpus(record.cpus - record.other_cpus, record.cpus)
        self._layout = make_layout(tuple(process.workers for process in plan.processes))
        self._predicted = self._predict(self._layout, self._costs)
        self._measured = compute_steady_samples_per_s(record)

    def estimate(self) -> tuple[WhatIf, ...]:
        work_ns = [compute_work_ns(group, self._costs) / group.workers for group in self._layout]
        limit = max(range(len(work_ns)), key=work_ns.__getitem__)
        estimates = [*self._add_worker(limit), *self._fuse(), *self._free_mode(), *self._leave_out(limit)]
        return tuple(sorted(estimates, key=lambda estimate: -estimate.gain))

    def _predict(self, layout: ProcessLayout, costs: PipelineCosts) -> float:
        return predict_throughput(layout, costs, self._cpus).items_per_s

    def _make(self, kind: str, change: str, overrides: tuple[str, ...], predicted: float) -> WhatIf:
        ratio = predicted / self._predicted
        rate = round(self._measured * ratio, 1)
        return WhatIf(kind=kind, change=change, overrides=overrides, items_per_s=rate, gain=round(ratio - 1, 3))

    def _add_worker(self, limit: int) -> Iterator[WhatIf]:
        """One more worker for the process with the most work."""
        process, workers = self._costs.processes[limit], self._layout[limit].workers
        if process.is_single_worker or (process.max_workers or workers + 1) <= workers or self._has_forced_pipe(limit):
            return
        layout = with_workers(self._layout, limit, workers + 1)
        predicted = self._predict(layout, self._costs)
        overrides = list_overrides(self._layout, layout, self._costs)
        yield self._make("workers", f"{process.name} with {workers + 1:,} workers", overrides, predicted)

    def _has_forced_pipe(self, index: int) -> bool:
        """Whether a hop of the process is a forced pipe: between single workers alone it takes messages of any size."""
        hops = self._plan.hops[max(index - 1, 0) : index + 1]
        return any(hop.mode == "pipe" for hop in hops)

    def _fuse(self) -> Iterator[WhatIf]:
        """The best pair of neighbours in one process."""
        options = [
            (self._predict(layout, self._costs), index, layout)
            for index, layout in iter_fusions(self._layout, self._costs)
            if not self._costs.processes[index].is_sink
        ]
        if options:
            predicted, index, layout = max(options, key=lambda option: option[0])
            change = f"{self._costs.processes[index].name} fused into {self._costs.processes[index - 1].name}"
            yield self._make("fuse", change, list_overrides(self._layout, layout, self._costs), predicted)

    def _free_mode(self) -> Iterator[WhatIf]:
        """The hop with the most to gain from `auto`, of those whose mode the config forces."""
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
            is_own = target is not None and target.transport != "auto"
            override = f"stages.{target.name}.transport=auto" if is_own and target else "transport.mode=auto"
            yield self._make(
                "mode", f"auto transport into {self._plan.hops[index].target} (at least)", (override,), predicted
            )

    def _compare_modes(self, index: int) -> float:
        """The predicted cost of a hop in the mode that the config does not force, relative to the forced one."""
        name = self._plan.processes[index].stages[-1].name
        predicted = next(hop.predicted for hop in self._record.hops if hop.source == name)
        costs_ns = {"pipe": predicted.pipe_ns, "shared_memory": predicted.shared_memory_ns}
        forced_ns = costs_ns.pop(self._plan.hops[index].mode, 0)
        return min(costs_ns.values()) / forced_ns if forced_ns else 1.0

    def _leave_out(self, limit: int) -> Iterator[WhatIf]:
        """The process with the most work left out: what there is to gain at most from a faster function."""
        plan, processes = self._plan.processes[limit], self._costs.processes
        if limit == 0 or plan.role is not ProcessRole.STAGE or processes[limit].is_sink or not self._keeps_count(limit):
            return
        costs = replace(
            self._costs,
            processes=(*processes[:limit], *processes[limit + 1 :]),
            hops=(*self._costs.hops[: limit - 1], *self._costs.hops[limit:]),
        )
        layout = make_layout(tuple(group.workers for group in (*self._layout[:limit], *self._layout[limit + 1 :])))
        names = " and ".join(stage.name for stage in plan.stages)
        yield self._make("without", f"without {names}", (), self._predict(layout, costs))

    def _keeps_count(self, index: int) -> bool:
        """Whether as many messages leave a process as came to it."""
        hops = {hop.source: hop.messages.total for hop in self._record.hops}
        before, after = (hops[self._plan.processes[number].stages[-1].name] for number in (index - 1, index))
        return abs(after - before) <= _MAX_COUNT_DIFFERENCE * before
