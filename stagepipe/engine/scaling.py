"""Moves workers between stages during a run: reads the run about twice a second, and asks `forecast.ScalingPolicy`.

Uses at most 0.3 % of a CPU, on the supervisor's thread. An error here never ends a run: it keeps its current workers.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Final, Protocol

from stagepipe.forecast import Decision, ResourceBudget, ScalingPolicy, ScalingSample, make_scaling_groups
from stagepipe.machine import CpuLoadSeries, cpu_quota, detect_machine, read_free_memory_bytes, read_own_memory_bytes
from stagepipe.runtime import ChangeCause, WorkerChange

if TYPE_CHECKING:
    from stagepipe.engine.live_figures import LiveFigures
    from stagepipe.runtime import DeliverySnapshot, Supervisor

_INTERVAL_NS: Final = 450_000_000
_SETTLED_INTERVAL_NS: Final = 950_000_000
"""A little less than half a second and one second: the supervisor's thread calls `check` at least twice a second."""

_TEST_INTERVAL_NS: Final = 20_000_000
_SLOW_INTERVAL_NS: Final = 10_000_000_000
"""Interval for slow readings, such as memory, which take about a millisecond."""

_log = logging.getLogger("stagepipe")


class ScalingDecider(Protocol):
    """Decides on the workers of a run."""

    def decide(self, sample: ScalingSample) -> Decision | None:
        """Return the change to make now, or None."""


class PolicyOverride:
    """A policy that tests use instead of `ScalingPolicy` for runs that this process starts; None for no override."""

    policy: ScalingDecider | None = None


class RunScaler:
    """Decides for one run. The supervisor's thread calls `check` several times a second."""

    def __init__(
        self, supervisor: Supervisor, figures: LiveFigures, read_deliveries: Callable[[], DeliverySnapshot]
    ) -> None:
        """`figures` reads the run's board, and `read_deliveries` the consumer's counters."""
        self._supervisor = weakref.ref(supervisor)
        self._figures = figures
        self._read_deliveries = read_deliveries
        self._plan = plan = supervisor.plan
        budget = ResourceBudget.of_machine(detect_machine(), plan.memory_bytes)
        self._machine_cpus = budget.machine_cpus
        self._policy: ScalingDecider | None
        self._policy = PolicyOverride.policy or ScalingPolicy(make_scaling_groups(plan), budget)
        self._cpu_load = CpuLoadSeries()
        self._due_ns = self._slow_due_ns = 0
        self._free_memory_bytes = 0
        self._max_cpus = budget.cpus
        self._worker_memory_bytes = (0,) * len(plan.processes)
        self._settled_changes = 0  # the number of leading worker changes that are complete

    def check(self) -> None:
        """Decide, if a decision is due."""
        now_ns = perf_counter_ns()
        supervisor = self._supervisor()
        if now_ns < self._due_ns or self._policy is None or supervisor is None:
            return
        try:
            self._decide(self._policy, supervisor, now_ns)
            self._due_ns = now_ns + self._choose_interval_ns()  # after the decision, which may find a shift
        except Exception:  # noqa: BLE001 - any error: the run can go on with its current workers
            self._policy = None
            _log.exception("the numbers of workers no longer change, because of an error")

    def _choose_interval_ns(self) -> int:
        if not isinstance(self._policy, ScalingPolicy):
            return _TEST_INTERVAL_NS
        return _SETTLED_INTERVAL_NS if self._policy.is_settled else _INTERVAL_NS

    def _decide(self, policy: ScalingDecider, supervisor: Supervisor, now_ns: int) -> None:
        decision = policy.decide(self._take_sample(supervisor, now_ns))
        if decision is not None:
            supervisor.request_workers(decision.group, decision.workers, ChangeCause(decision.reason, decision.gain))

    def _take_sample(self, supervisor: Supervisor, now_ns: int) -> ScalingSample:
        if now_ns >= self._slow_due_ns:
            self._slow_due_ns = now_ns + _SLOW_INTERVAL_NS
            self._read_slowly(supervisor)
        run = self._figures.read()
        groups = range(len(self._plan.processes))
        changes = supervisor.worker_changes[self._settled_changes :]
        open_changes = [change for change in changes if not change.done_ns and not change.failure]
        if not open_changes:
            self._settled_changes += len(changes)
        pids = [worker.pid for worker in supervisor.workers.values()]
        return ScalingSample(
            run=run,
            workers=tuple(map(supervisor.count_workers, groups)),
            free_cpus=max(min(self._machine_cpus - self._cpu_load.measure_other_cpus(pids), self._max_cpus), 0.0),
            free_memory_bytes=self._free_memory_bytes,
            worker_memory_bytes=self._worker_memory_bytes,
            start_ns=tuple(
                _find_start_ns(supervisor.worker_changes, group)
                or run.stages[group].starting_ns // max(self._plan.processes[group].workers, 1)
                for group in groups
            ),
            caller_cpu_ns=process_time_ns(),
            outside_ns=self._read_deliveries().outside_ns,
            is_changing=bool(open_changes),
            failed=frozenset(change.group for change in changes if change.failure),
        )

    def _read_slowly(self, supervisor: Supervisor) -> None:
        self._free_memory_bytes = read_free_memory_bytes()
        self._max_cpus = cpu_quota() or float(self._machine_cpus)
        pids = {worker.slot.worker_group: worker.pid for worker in supervisor.workers.values() if worker.is_ready}
        self._worker_memory_bytes = tuple(
            process.first_stage.group * read_own_memory_bytes(pids[group])
            if group in pids and process.worker_bounds is not None
            else 0
            for group, process in enumerate(self._plan.processes)
        )


def _find_start_ns(changes: list[WorkerChange], group: int) -> int:
    """Return the start-up time of the last worker that was added to a group; 0 if there was none."""
    times_ns = (c.done_ns - c.asked_ns for c in reversed(changes) if c.group == group and c.delta > 0 and c.done_ns)
    return next(times_ns, 0)
