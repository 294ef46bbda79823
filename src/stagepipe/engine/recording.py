"""From the board to a record of the run. Reads what the workers wrote; writes nothing to it."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from time import perf_counter_ns

from stagepipe.engine.hops import hops_of
from stagepipe.engine.rate import Rate
from stagepipe.plan import TIMING_HOW, Role, host
from stagepipe.report import Progress, RunRecord, SlowItem, StageRecord
from stagepipe.runtime.consumer import Consumer
from stagepipe.runtime.resources import WorkerPlace
from stagepipe.runtime.supervisor import Supervisor
from stagepipe.timing import Histogram, Region, StageWord, Word

_PAGE = 4096
_SLOWEST = 10


class Sampler:
    """Memory of the workers, and the rates of a progress bar."""

    def __init__(self, supervisor: Supervisor) -> None:
        """Watch the supervisor's workers."""
        self._supervisor = supervisor
        self._begun_ns = perf_counter_ns()
        self.rss_bytes: dict[int, int] = {}
        self.pss_bytes: dict[int, int] = {}
        self._busy: dict[int, int] = {}
        self._samples_rate, self._items_rate = Rate(), Rate()

    def sample_memory(self) -> None:
        """Resident and proportional memory of each worker that runs."""
        for number, worker in self._supervisor.workers.items():
            with contextlib.suppress(OSError, ValueError, IndexError):
                for line in Path(f"/proc/{worker.pid}/smaps_rollup").read_text().splitlines():
                    name, _, rest = line.partition(":")
                    if name in {"Rss", "Pss"}:
                        table = self.rss_bytes if name == "Rss" else self.pss_bytes
                        table[number] = int(rest.split()[0]) * 1024

    def progress(self, consumer: Consumer, *, finished: bool) -> Progress:
        """Where the run stands now."""
        supervisor = self._supervisor
        now = perf_counter_ns()
        source = supervisor.board.region(0)
        total = source[Word.TOTAL]
        return Progress(
            elapsed_ns=now - self._begun_ns,
            items_in=source[Word.ITEMS_IN],
            items_total=total - 1 if total else None,
            items_out=consumer.items,
            samples_out=consumer.samples,
            samples_per_s=self._samples_rate.per_s(now, consumer.samples),
            items_per_s=self._items_rate.per_s(now, source[Word.SENT]),
            starting=supervisor.starting(),
            busiest=self._busiest(),
            finished=finished,
        )

    def _busiest(self) -> str:
        """The stage whose workers worked most since the last call."""
        best, share = "", 0.0
        board = self._supervisor.board
        by_stage: dict[str, tuple[int, int]] = {}
        for place in self._supervisor.resources.places:
            region = board.region(place.number)
            busy = sum(region.stage(number)[StageWord.BUSY_NS] for number in range(region.stages))
            gained, workers = by_stage.get(place.plan.name, (0, 0))
            by_stage[place.plan.name] = (gained + busy - self._busy.get(place.number, 0), workers + 1)
            self._busy[place.number] = busy
        for name, (gained, workers) in by_stage.items():
            if gained / workers > share:
                best, share = name, gained / workers
        return best


def record_of(
    supervisor: Supervisor, consumer: Consumer, sampler: Sampler, status: str, error: str | None
) -> RunRecord:
    """The record of a run as the board stands."""
    plan, board = supervisor.plan, supervisor.board
    places = supervisor.resources.places
    regions = {place.number: board.region(place.number) for place in places}
    now = perf_counter_ns()
    wall_ns = (consumer.ended_ns or now) - consumer.begun_ns
    restarts = supervisor.recovery.restarts
    crashes = Counter(each.death.stage.name for each in restarts)
    stages = tuple(replace(stage, crashes=crashes[stage.name]) for stage in _stages(places, regions, sampler, now))
    source = regions[0]
    end_ns = source[Word.EPOCH_END_NS]
    skipped = sum(stage.skipped for stage in stages)
    return RunRecord(
        name=plan.name,
        config_sha256=plan.config_sha256,
        status=status,
        error=error,
        items_in=source[Word.SENT],
        items_out=consumer.items,
        samples_out=consumer.samples,
        items_skipped=skipped,
        wall_ns=wall_ns,
        first_item_ns=consumer.first_item_ns,
        source_end_ns=end_ns - consumer.begun_ns if end_ns else wall_ns,
        delivered=tuple(consumer.delivered),
        consumer_wait_ns=consumer.wait_ns,
        consumer_busy_ns=consumer.busy_ns,
        consumer_first_wait_ns=consumer.first_wait_ns,
        consumer_outside_ns=consumer.outside_ns,
        stages=stages,
        hops=hops_of(supervisor),
        timing_ns_per_hop=plan.curves.timing_ns_per_hop,
        timing_how=TIMING_HOW,
        host=host(),
        calibration=plan.curves.to_plain(),
        arena_peak_bytes=sum(region[Word.PEAK_BYTES] for region in regions.values()),
        arena_limit_bytes=plan.memory_bytes,
        copied_out_items=board.region(supervisor.resources.sink_number)[Word.COPIED_OUT],
        cpus=plan.cpus,
        window=plan.stretches[0].window,
        slowest=_slowest(places, regions),
        restarts=tuple(
            {
                "stage": each.death.stage.name,
                "worker": each.death.worker,
                "cause": each.death.cause,
                "item": each.death.item,
                "lost_ns": each.lost_ns,
            }
            for each in restarts
        ),
        dead_letters=supervisor.letters.all(),
        order_points=tuple(p.name for p in plan.processes if p.role is Role.ORDER_POINT),
    )


def _stages(
    places: tuple[WorkerPlace, ...], regions: dict[int, Region], sampler: Sampler, now: int
) -> tuple[StageRecord, ...]:
    records = []
    for group, process in enumerate({place.group: place.plan for place in places}.values()):
        numbers = [place.number for place in places if place.group == group]
        mine = [regions[number] for number in numbers]
        wall = sum(max((r[Word.STOPPED_NS] or now) - r[Word.STARTED_NS], 0) for r in mine if r[Word.STARTED_NS])
        starting = sum((r[Word.READY_NS] or now) - r[Word.STARTED_NS] for r in mine if r[Word.STARTED_NS])
        starting += sum(r[Word.RESTARTING_NS] for r in mine)
        for at, stage in enumerate(process.stages):
            parts = [region.stage(at) for region in mine]
            busy = sum(part[StageWord.BUSY_NS] for part in parts)
            first = at == 0
            run = reduce(add, (Histogram.from_words(part.run) for part in parts))
            records.append(
                StageRecord(
                    name=stage.name,
                    workers=len(numbers),
                    items=sum(part[StageWord.ITEMS] for part in parts),
                    wall_ns=wall if first else busy,
                    starting_ns=starting if first else 0,
                    busy_ns=busy,
                    starved_ns=sum(r[Word.STARVED_NS] for r in mine) if first else 0,
                    blocked_ns=sum(r[Word.BLOCKED_NS] for r in mine) if first else 0,
                    run=run,
                    cpu_ns=sum(r[Word.CPU_NS] for r in mine) if first else 0,
                    rss_bytes=sum(sampler.rss_bytes.get(number, 0) for number in numbers) if first else 0,
                    pss_bytes=sum(sampler.pss_bytes.get(number, 0) for number in numbers) if first else 0,
                    errors=sum(part[StageWord.ERRORS] for part in parts),
                    skipped=sum(part[StageWord.SKIPPED] for part in parts),
                    retries=sum(part[StageWord.RETRIES] for part in parts),
                    fused_into=None if first else process.name,
                )
            )
    return tuple(records)


def _slowest(places: tuple[WorkerPlace, ...], regions: dict[int, Region]) -> tuple[SlowItem, ...]:
    found = []
    for place in places:
        for at, stage in enumerate(place.plan.stages):
            for run_ns, queue_ns, item in regions[place.number].stage(at).slow.tolist():
                if item:
                    found.append(SlowItem(str(item - 1), stage.name, run_ns, queue_ns))
    found.sort(key=lambda slow: -slow.run_ns)
    return tuple(found[:_SLOWEST])
