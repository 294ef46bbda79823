"""Follows a run while it goes: its workers' memory and waits, other programs' load, and the rates for a progress bar.

In the caller's process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from stagepipe.engine.item_rate import RateEstimator
from stagepipe.engine.sample_rates import StageRates
from stagepipe.machine import CpuLoadMeter, cpu_delay_ns, cpu_quota, read_throttling
from stagepipe.report import Progress
from stagepipe.runtime import RunSample, RunSnapshot, WorkerSnapshot
from stagepipe.timing import ProcessCounter


@dataclass(frozen=True)
class WorkerUsage:
    """The resident and the proportional memory (RSS, PSS) of a worker, in bytes, and its time waiting for a CPU."""

    rss_bytes: int = 0
    pss_bytes: int = 0
    cpu_wait_ns: int = 0


class RunMonitor:
    """Compares snapshots of one run."""

    def __init__(self) -> None:
        self.usage_by_process: dict[int, WorkerUsage] = {}
        """As last measured, by process index."""
        self.other_cpus = 0.0
        """Mean number of CPUs that other programs have used during the run, as last measured."""
        self.yielding_cpus = 0.0
        """Those of them that programs of a lower priority have used."""
        self.cpu_quota = 0.0
        """CPUs that the control group may use; 0: no limit."""
        self.throttled_share = 0.0
        """Share of the quota's periods in which it was used up, as last measured."""
        self._load_meter = CpuLoadMeter()
        self._first_periods = read_throttling()
        self._previous_busy_ns: dict[int, int] = {}
        self._samples_rate = RateEstimator()
        self._items_rate = RateEstimator()
        self._stage_rates = StageRates()
        self._items_done: int | None = None  # of the epoch
        self._total_items_done = 0  # of all epochs, without those before a resume

    def sample_usage(self, workers: Iterable[WorkerSnapshot]) -> None:
        """Measure each worker that runs, the load of other programs, and the use of the CPU quota.

        Call it before the workers end.
        """
        self.other_cpus = self._load_meter.measure_other_cpus()
        self.yielding_cpus = min(self._load_meter.measure_yielding_cpus(), self.other_cpus)
        self.cpu_quota = cpu_quota() or 0.0
        periods, throttled = (now - then for now, then in zip(read_throttling(), self._first_periods, strict=True))
        self.throttled_share = throttled / periods if periods > 0 else 0.0
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                memory = psutil.Process(worker.pid).memory_full_info()
                self.usage_by_process[worker.slot.process_index] = WorkerUsage(
                    memory.rss, memory.pss, cpu_delay_ns(worker.pid)
                )

    def progress(self, snapshot: RunSnapshot, sample: RunSample, *, is_finished: bool) -> Progress:
        """Return the progress of the run. `sample` was taken with the snapshot."""
        now_ns = snapshot.taken_at_ns
        source_counters = snapshot.workers[0].counters
        deliveries = snapshot.deliveries
        self._count_items_done(sample)
        epoch_items_plus_one = source_counters[ProcessCounter.EPOCH_ITEMS_PLUS_ONE]
        return Progress(
            elapsed_ns=now_ns - deliveries.started_ns,
            items_in=source_counters[ProcessCounter.ITEMS_IN],
            items_done=self._items_done or 0,
            items_total=epoch_items_plus_one - 1 if epoch_items_plus_one else None,
            items_out=deliveries.items,
            samples_out=deliveries.samples,
            samples_per_s=self._samples_rate.update(deliveries.started_ns + deliveries.wall_ns, deliveries.samples),
            items_per_s=self._items_rate.update(now_ns, self._total_items_done),
            starting=snapshot.starting_stages,
            stages=self._stage_rates.update(snapshot, sample),
            busiest=self._find_busiest_process(snapshot),
            finished=is_finished,
        )

    def _count_items_done(self, sample: RunSample) -> None:
        if sample.items_done is None:
            return
        if self._items_done is not None:
            is_same_epoch = sample.items_done >= self._items_done
            self._total_items_done += sample.items_done - (self._items_done if is_same_epoch else 0)
        self._items_done = sample.items_done

    def _find_busiest_process(self, snapshot: RunSnapshot) -> str:
        """Return the process whose workers were busiest, on average, since the last call; "" if none was."""
        previous_ns = self._previous_busy_ns
        self._previous_busy_ns = {worker.slot.process_index: worker.busy_ns for worker in snapshot.workers}
        mean_busy_ns = {
            workers[0].slot.process_plan.name: sum(
                worker.busy_ns - previous_ns.get(worker.slot.process_index, 0) for worker in workers
            )
            / len(workers)
            for workers in snapshot.worker_groups
        }
        busiest_name = max(mean_busy_ns, key=mean_busy_ns.__getitem__)
        return busiest_name if mean_busy_ns[busiest_name] else ""
