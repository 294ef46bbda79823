"""Makes the record of a run from the board, and samples memory and rates. In the supervisor's process; only reads."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from functools import reduce
from operator import add
from time import perf_counter_ns

import psutil

from stagepipe.calibration import TIMING_OVERHEAD_METHOD
from stagepipe.engine.hop_records import make_hop_records
from stagepipe.engine.item_rate import RateEstimator
from stagepipe.machine import describe_host
from stagepipe.plan import ProcessRole
from stagepipe.report import Progress, RunRecord, SlowItem, StageRecord
from stagepipe.runtime import Consumer, Supervisor, WorkerSlot
from stagepipe.timing import Histogram, ProcessCounter, ProcessRegion, StageCounter

_MAX_SLOW_ITEMS = 10
"""Slowest items in the record: enough to see whether they share a stage, few enough to read."""


class RunMonitor:
    """Measures the memory of the workers, and the rates for a progress bar."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Watch the supervisor's workers."""
        self._supervisor = supervisor
        self._started_ns = perf_counter_ns()
        self.rss_bytes_by_process: dict[int, int] = {}
        self.pss_bytes_by_process: dict[int, int] = {}
        self._last_busy_ns_by_process: dict[int, int] = {}
        self._samples_rate = RateEstimator()
        self._items_rate = RateEstimator()

    def sample_memory(self) -> None:
        """Measure the resident and proportional memory (RSS, PSS) of each running worker."""
        for process_index, worker in self._supervisor.workers.items():
            with contextlib.suppress(psutil.Error):
                memory = psutil.Process(worker.pid).memory_full_info()
                self.rss_bytes_by_process[process_index] = memory.rss
                self.pss_bytes_by_process[process_index] = memory.pss

    def progress(self, consumer: Consumer, *, is_finished: bool) -> Progress:
        """Return the progress of the run."""
        supervisor = self._supervisor
        now_ns = perf_counter_ns()
        deliveries = consumer.statistics.take_snapshot()
        source_region = supervisor.board.region(0)
        epoch_items_plus_one = source_region[ProcessCounter.EPOCH_ITEMS_PLUS_ONE]
        return Progress(
            elapsed_ns=now_ns - self._started_ns,
            items_in=source_region[ProcessCounter.ITEMS_IN],
            items_total=epoch_items_plus_one - 1 if epoch_items_plus_one else None,
            items_out=deliveries.items,
            samples_out=deliveries.samples,
            samples_per_s=self._samples_rate.update(now_ns, deliveries.samples),
            items_per_s=self._items_rate.update(now_ns, source_region[ProcessCounter.ITEMS_SENT]),
            starting=supervisor.starting_stages,
            busiest=self._find_busiest_stage(),
            finished=is_finished,
        )

    def _find_busiest_stage(self) -> str:
        """Return the stage whose workers were busiest, on average, since the last call."""
        board = self._supervisor.board
        totals_by_stage: dict[str, tuple[int, int]] = {}
        for slot in self._supervisor.resources.slots:
            region = board.region(slot.process_index)
            stage_indices = range(region.stage_count)
            busy_ns = sum(region.stage_region(index)[StageCounter.BUSY_NS] for index in stage_indices)
            busy_delta_ns = busy_ns - self._last_busy_ns_by_process.get(slot.process_index, 0)
            stage_busy_ns, workers = totals_by_stage.get(slot.process_plan.name, (0, 0))
            totals_by_stage[slot.process_plan.name] = (stage_busy_ns + busy_delta_ns, workers + 1)
            self._last_busy_ns_by_process[slot.process_index] = busy_ns
        busiest_name = ""
        max_mean_busy_ns = 0.0
        for name, (stage_busy_ns, workers) in totals_by_stage.items():
            if stage_busy_ns / workers > max_mean_busy_ns:
                busiest_name = name
                max_mean_busy_ns = stage_busy_ns / workers
        return busiest_name


def make_run_record(
    supervisor: Supervisor, consumer: Consumer, monitor: RunMonitor, status: str, error_message: str | None
) -> RunRecord:
    """Make the record of a run from the present state of the board."""
    plan = supervisor.plan
    board = supervisor.board
    slots = supervisor.resources.slots
    regions = {slot.process_index: board.region(slot.process_index) for slot in slots}
    now_ns = perf_counter_ns()
    deliveries = consumer.statistics.take_snapshot()
    restarts = supervisor.recovery.restarts.history
    crashes = Counter(restart.death.stage.name for restart in restarts)
    stages = tuple(
        replace(stage, crashes=crashes[stage.name]) for stage in _make_stage_records(slots, regions, monitor, now_ns)
    )
    source_region = regions[0]
    source_end_ns = source_region[ProcessCounter.EPOCH_END_NS]
    skipped = sum(stage.skipped for stage in stages)
    return RunRecord(
        name=plan.name,
        config_sha256=plan.config_sha256,
        status=status,
        error=error_message,
        items_in=source_region[ProcessCounter.ITEMS_SENT],
        items_out=deliveries.items,
        samples_out=deliveries.samples,
        items_skipped=skipped,
        wall_ns=deliveries.wall_ns,
        first_item_ns=deliveries.first_item_ns,
        source_end_ns=source_end_ns - deliveries.started_ns if source_end_ns else deliveries.wall_ns,
        delivery_points=deliveries.points,
        consumer_wait_ns=deliveries.wait_ns,
        consumer_busy_ns=deliveries.busy_ns,
        consumer_first_wait_ns=deliveries.first_wait_ns,
        consumer_outside_loop_ns=deliveries.outside_ns,
        stages=stages,
        hops=make_hop_records(supervisor),
        timing_ns_per_hop=plan.curves.timing_ns_per_hop,
        timing_method=TIMING_OVERHEAD_METHOD,
        host_info=describe_host(),
        calibration=plan.curves.to_dict(),
        arena_peak_bytes=sum(region[ProcessCounter.PEAK_BYTES] for region in regions.values()),
        arena_limit_bytes=plan.memory_bytes,
        copied_out_items=board.region(supervisor.resources.consumer_process_index)[ProcessCounter.COPIED_OUT_ITEMS],
        cpus=plan.cpu_count,
        window_items=plan.segments[0].window,
        slowest_items=_find_slowest_items(slots, regions),
        restarts=tuple(
            {
                "stage": restart.death.stage.name,
                "worker": restart.death.worker,
                "cause": restart.death.cause,
                "item": restart.death.item,
                "lost_ns": restart.lost_ns,
            }
            for restart in restarts
        ),
        dead_letters=supervisor.dead_letters.to_records(),
        order_point_names=tuple(process.name for process in plan.processes if process.role is ProcessRole.ORDER_POINT),
    )


def _make_stage_records(
    slots: tuple[WorkerSlot, ...], regions: dict[int, ProcessRegion], monitor: RunMonitor, now_ns: int
) -> tuple[StageRecord, ...]:
    records = []
    for worker_group, process in enumerate({slot.worker_group: slot.process_plan for slot in slots}.values()):
        process_indices = [slot.process_index for slot in slots if slot.worker_group == worker_group]
        process_regions = [regions[process_index] for process_index in process_indices]
        started_regions = [region for region in process_regions if region[ProcessCounter.STARTED_NS]]
        wall_ns = sum(
            max((region[ProcessCounter.STOPPED_NS] or now_ns) - region[ProcessCounter.STARTED_NS], 0)
            for region in started_regions
        )
        starting_ns = sum(
            (region[ProcessCounter.READY_NS] or now_ns) - region[ProcessCounter.STARTED_NS]
            for region in started_regions
        )
        starting_ns += sum(region[ProcessCounter.DOWNTIME_NS] for region in process_regions)
        rss_bytes = sum(monitor.rss_bytes_by_process.get(process_index, 0) for process_index in process_indices)
        pss_bytes = sum(monitor.pss_bytes_by_process.get(process_index, 0) for process_index in process_indices)
        for stage_index, stage in enumerate(process.stages):
            stage_regions = [region.stage_region(stage_index) for region in process_regions]
            busy_ns = sum(region[StageCounter.BUSY_NS] for region in stage_regions)
            is_first_stage = stage_index == 0
            records.append(
                StageRecord(
                    name=stage.name,
                    workers=len(process_indices),
                    items=sum(region[StageCounter.ITEMS] for region in stage_regions),
                    wall_ns=wall_ns if is_first_stage else busy_ns,
                    starting_ns=starting_ns if is_first_stage else 0,
                    busy_ns=busy_ns,
                    starved_ns=_sum_counter(process_regions, ProcessCounter.STARVED_NS) if is_first_stage else 0,
                    blocked_ns=_sum_counter(process_regions, ProcessCounter.BLOCKED_NS) if is_first_stage else 0,
                    run_histogram=reduce(
                        add, (Histogram.from_words(region.run_histogram_words) for region in stage_regions)
                    ),
                    cpu_ns=_sum_counter(process_regions, ProcessCounter.CPU_NS) if is_first_stage else 0,
                    rss_bytes=rss_bytes if is_first_stage else 0,
                    pss_bytes=pss_bytes if is_first_stage else 0,
                    errors=sum(region[StageCounter.FAILED_ATTEMPTS] for region in stage_regions),
                    skipped=sum(region[StageCounter.SKIPPED] for region in stage_regions),
                    retries=sum(region[StageCounter.RETRIES] for region in stage_regions),
                    fused_into=None if is_first_stage else process.name,
                )
            )
    return tuple(records)


def _sum_counter(regions: list[ProcessRegion], counter: ProcessCounter) -> int:
    return sum(region[counter] for region in regions)


def _find_slowest_items(slots: tuple[WorkerSlot, ...], regions: dict[int, ProcessRegion]) -> tuple[SlowItem, ...]:
    slow_items = []
    for slot in slots:
        for stage_index, stage in enumerate(slot.process_plan.stages):
            stage_region = regions[slot.process_index].stage_region(stage_index)
            for run_ns, queue_ns, item_plus_one in stage_region.slow_items.tolist():
                if item_plus_one:
                    slow_items.append(SlowItem(str(item_plus_one - 1), stage.name, run_ns, queue_ns))
    slow_items.sort(key=lambda slow_item: -slow_item.run_ns)
    return tuple(slow_items[:_MAX_SLOW_ITEMS])
