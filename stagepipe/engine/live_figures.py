"""The figures of a running run, read from its board: in the process of the run, or in `stagepipe top`.

    board -> read: a LiveRun of counters, one row per process -> take: rates of the last seconds, rows as in the config

The run keeps all these counters anyway, so reading them costs it nothing. Workers write their counters every 0.1 s, but
not while they are in a stage's function.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, pairwise
from time import perf_counter_ns
from typing import Any, Final

import psutil
from msgspec.structs import replace

from stagepipe.report import (
    SUMMED_FIGURES,
    LiveHop,
    LivePercentiles,
    LiveRun,
    LiveStage,
    LiveWorkerChange,
    StageTally,
    WorkerLoad,
    find_limiting_stage,
)
from stagepipe.runtime import (
    AttachedRun,
    DeliverySnapshot,
    ProcessDescription,
    RunDescription,
    RunTimings,
    read_deliveries,
    read_run_timings,
)
from stagepipe.timing import (
    BUCKET_COUNT,
    HISTOGRAM_WORDS,
    QUEUE_COUNT_WORDS,
    QUEUE_SUM_WORD,
    RECEIVE_PHASES,
    SEND_PHASES,
    Board,
    Histogram,
    ProcessCounter,
    ProcessRegion,
    ProcessState,
    StageCounter,
    is_present,
)

_MIN_AVERAGING_NS: Final = 5_000_000_000
"""Minimum averaging time: the rate follows a change within seconds and does not flicker."""


class RateEstimator:
    """The rate of a count over the last 5 s, or since its last increase if that was earlier, as with large batches.

    The time before the first count (start-up, imports) is left out.

    >>> rate = RateEstimator()
    >>> [rate.update(second * 10**9, count) for second, count in enumerate((0, 0, 64, 64, 128))]
    [0.0, 0.0, 64.0, 32.0, 42.666666666666664]
    """

    def __init__(self) -> None:
        self._growth_points: deque[tuple[int, int]] = deque()
        """(time in ns, count) at each increase. The rate starts at the first one."""

    def update(self, now_ns: int, count: int) -> float:
        """Return the rate per second at `now_ns`. Call it often, with a count that never decreases."""
        points = self._growth_points
        if not count:
            points.clear()
        if not points or count > points[-1][1]:
            points.append((now_ns, count))
        while len(points) > 2 and points[1][0] <= now_ns - _MIN_AVERAGING_NS:  # noqa: PLR2004 - keep one increase
            points.popleft()
        oldest_ns, oldest_count = points[0]
        return (count - oldest_count) * 1e9 / (now_ns - oldest_ns) if now_ns > oldest_ns else 0.0


class ProgressMeter:
    """The figures of a run without a board: its read and delivered items."""

    def __init__(self) -> None:
        """Start without readings."""
        self._items_rate = RateEstimator()
        self._samples_rate = RateEstimator()

    def take(self, deliveries: DeliverySnapshot, items_in: int, items_total: int | None) -> LiveRun:
        """Return the current figures, with rates of the last seconds."""
        now_ns = perf_counter_ns()
        return LiveRun(
            elapsed_ns=deliveries.wall_ns,
            items_in=items_in,
            items_done=items_in,
            items_total=items_total,
            items_out=deliveries.items,
            samples_out=deliveries.samples,
            items_per_s=self._items_rate.update(now_ns, items_in),
            samples_per_s=self._samples_rate.update(now_ns, deliveries.samples),
        )


_PROCESS_COUNTERS: Final = {
    "starved_ns": ProcessCounter.STARVED_NS,
    "blocked_ns": ProcessCounter.BLOCKED_NS,
    "cpu_ns": ProcessCounter.CPU_NS,
    "starting_ns": ProcessCounter.DOWNTIME_NS,
}
"""Fields of `LiveStage`."""
_HOP_COUNTERS: Final = {
    "pipe_messages": ProcessCounter.PIPE_MESSAGES,
    "shared_memory_messages": ProcessCounter.SHARED_MEMORY_MESSAGES,
    "mixed_messages": ProcessCounter.MIXED_MESSAGES,
    "inline_bytes": ProcessCounter.INLINE_BYTES,
    "copied_bytes": ProcessCounter.COPIED_BYTES,
    "zero_copy_bytes": ProcessCounter.ZERO_COPY_BYTES,
}
"""Fields of `LiveHop`, by the counters of its sender."""
_COUNTS: Final = tuple(field for field in SUMMED_FIGURES if field in StageTally.__struct_fields__)
"""The fields of a row that are sums over its stages."""
_SUMMED_FIELDS: Final = (*(field for field in _COUNTS if field != "busy_ns"), "rss_bytes", "restarts", "cpu_ns")
_AVERAGING_NS: Final = 2_000_000_000
"""Figures of a row are means over 2 s: steady enough to read, and quick to follow a change."""
_MIN_GENERATOR_RATIO: Final = 1.05
"""A stage that sends at least this many messages per input makes several items from one."""
# Words of the board that sum the phases in which a process works on its hops.
_SEND_SUM_WORDS: Final = [
    SEND_PHASES.index(phase) * HISTOGRAM_WORDS + BUCKET_COUNT for phase in ("encode_ns", "copy_ns", "send_ns")
]
_RECEIVE_SUM_WORDS: Final = [
    RECEIVE_PHASES.index(phase) * HISTOGRAM_WORDS + BUCKET_COUNT for phase in ("receive_ns", "decode_ns")
]


class LiveFigures:
    """The figures of one run. Call `take` regularly; other threads may call `read`.

    >>> figures = LiveFigures.attach(find_runs().runs[0])  # doctest: +SKIP
    >>> figures.take(detailed=True).limited_by  # doctest: +SKIP
    'decode'
    """

    def __init__(
        self,
        description: RunDescription,
        board: Board,
        read_deliveries: Callable[[], DeliverySnapshot],
        *,
        run_id: str = "",
        pid: int = 0,
    ) -> None:
        """Take the first reading, the baseline for later ones.

        Args:
            description: The processes and rows of the run.
            board: The board with its counters.
            read_deliveries: Returns the counters of the consumer.
            run_id: The process that runs it, and the number of the run in that process.
            pid: The process that consumes the items.

        """
        self.description = description
        self._board = board
        self._read_deliveries = read_deliveries
        self._run_id = run_id
        self._pid = pid
        ends = list(accumulate((process.slot_count for process in description.processes), initial=0))
        self._groups = [*(list(range(*each)) for each in pairwise(ends)), [ends[-1]]]
        self._readers = [_ProcessReader([board.region(index) for index in group]) for group in self._groups]
        self._points: deque[LiveRun] = deque()
        self._timings: deque[tuple[int, RunTimings]] = deque()
        self._last_stages: tuple[LiveStage, ...] = ()
        self._last_workers: dict[str, int] = {}
        self._last_change: LiveWorkerChange | None = None
        self._processes: dict[int, psutil.Process] = {}
        self._samples_rate = RateEstimator()
        self._items_rate = RateEstimator()
        self._items_done: int | None = None  # in this epoch
        self._total_items_done = 0  # in all epochs, without items before a resume

    @classmethod
    def attach(cls, run: AttachedRun) -> LiveFigures:
        """Return the figures of a run in another process."""
        words = run.board.delivery_words
        figures = cls(run.description, run.board, lambda: read_deliveries(words), run_id=run.run_id, pid=run.pid)
        figures.take(detailed=True)
        return figures

    @property
    def regions(self) -> list[Sequence[ProcessRegion]]:
        """The counters on the board, for each worker of each process."""
        return [reader.regions for reader in self._readers[:-1]]

    # ------------------------------------------------------------------ counters

    def read(self) -> LiveRun:
        """Return the current counters without rates: one row per process of the plan, then the consumer."""
        board, description = self._board, self.description
        deliveries = self._read_deliveries()
        source = self._readers[0].regions[0]
        epoch_items_plus_one = source[ProcessCounter.EPOCH_ITEMS_PLUS_ONE]
        stages = (
            *map(_ProcessReader.read, self._readers[:-1], description.processes),
            self._read_consumer(deliveries),
        )
        is_starting = any(stage.is_starting for stage in stages)
        return LiveRun(
            name=description.name,
            run_id=self._run_id,
            pid=self._pid,
            state="ended" if self._has_ended else "starting" if is_starting else "running",
            elapsed_ns=perf_counter_ns() - deliveries.started_ns if deliveries.started_ns else 0,
            items_in=source[ProcessCounter.ITEMS_IN],
            items_done=self._items_done or 0,
            items_total=epoch_items_plus_one - 1 if epoch_items_plus_one else None,
            items_out=deliveries.items,
            samples_out=deliveries.samples,
            files_out=deliveries.files,
            shared_memory_bytes=board.live_bytes(),
            shared_memory_peak_bytes=sum([reader.sum(ProcessCounter.PEAK_BYTES) for reader in self._readers[:-1]]),
            copied_out_items=self._readers[-1].sum(ProcessCounter.COPIED_OUT_ITEMS),
            source_end_ns=max(source[ProcessCounter.EPOCH_END_NS] - deliveries.started_ns, 0),
            shared_memory_limit_bytes=description.memory_bytes,
            stages=stages,
            hops=tuple(
                reader.read_hop(*ends) for reader, ends in zip(self._readers, description.hop_ends, strict=False)
            ),
            consumer_wait_ns=deliveries.wait_ns,
            consumer_busy_ns=deliveries.busy_ns,
            items_sent=source[ProcessCounter.ITEMS_SENT],
            taken_at_ns=perf_counter_ns(),
        )

    def read_rows(self) -> LiveRun:
        """Return the current counters without rates, with one row per row of the config."""
        return self._fold(self.read())

    @property
    def _has_ended(self) -> bool:
        """Whether the run or its process has ended."""
        return self._board.has_ended or (self._pid != 0 and self._find_process(self._pid) is None)

    def _read_consumer(self, deliveries: DeliverySnapshot) -> LiveStage:
        [region] = self._readers[-1].regions
        words = region.receive_histogram_words
        return LiveStage(
            name=self.description.consumer,
            kind="sink" if self.description.is_consumer_sink else "consumer",
            ready_workers=1,
            items=deliveries.items,
            covered_ns=deliveries.wall_ns,
            busy_ns=deliveries.busy_ns,
            starved_ns=deliveries.wait_ns,
            hop_ns=int(words[_RECEIVE_SUM_WORDS].sum()),
            received=int(words[QUEUE_COUNT_WORDS].sum()),
            queue_ns=int(words[QUEUE_SUM_WORD]),
        )

    # ------------------------------------------------------------------ rates, and the rows of the config

    def take(self, *, detailed: bool = False) -> LiveRun:
        """Return the current figures with rates of the last seconds; with `detailed`, also percentiles and memory."""
        run = self._count_items_done(self.read())
        points = self._points
        points.append(run)
        oldest_ns = run.taken_at_ns - _AVERAGING_NS
        while len(points) > 2 and points[1].taken_at_ns <= oldest_ns:  # noqa: PLR2004 - two make an interval
            points.popleft()
        known = self._last_stages or [None] * len(run.stages)
        stages = self._last_stages = tuple(map(compare_looks, points[0].stages, run.stages, known))
        hops = run.hops
        if detailed:
            stages, hops = self._add_details(run.taken_at_ns, stages, hops)
        run = replace(run, stages=stages, hops=hops)
        run = self._fold(replace(run, stages=count_in_source_items(self.description, run)))
        return replace(
            run,
            last_change=self._note_change(run),
            items_per_s=self._items_rate.update(run.taken_at_ns, self._total_items_done),
            samples_per_s=self._samples_rate.update(run.taken_at_ns, run.samples_out),
            limited_by=find_limiting_stage(run.stages),
        )

    def _note_change(self, run: LiveRun) -> LiveWorkerChange | None:
        """Return the last change in a number of workers between two readings."""
        workers = {stage.name: stage.workers for stage in run.stages}
        for stage, after in workers.items():
            before = self._last_workers.get(stage, after)
            if before != after:
                self._last_change = LiveWorkerChange(stage=stage, before=before, after=after, at_ns=run.elapsed_ns)
        self._last_workers = workers
        return self._last_change

    def _count_items_done(self, run: LiveRun) -> LiveRun:
        """Count the items that have left the first segment. The count is unknown during a seek."""
        items_done = self._board.read_consumed(0, self._board.generation)
        if items_done is not None:
            if self._items_done is not None:
                is_same_epoch = items_done >= self._items_done
                self._total_items_done += items_done - (self._items_done if is_same_epoch else 0)
            self._items_done = items_done
        return replace(run, items_done=self._items_done or 0)

    def _add_details(
        self, now_ns: int, stages: Sequence[LiveStage], hops: Sequence[LiveHop]
    ) -> tuple[tuple[LiveStage, ...], tuple[LiveHop, ...]]:
        names = [process.stages for process in self.description.processes]
        timings = self._timings
        timings.append((now_ns, read_run_timings(self._board, names, self._groups)))
        while len(timings) > 2 and timings[1][0] <= now_ns - _AVERAGING_NS:  # noqa: PLR2004 - two make an interval
            timings.popleft()
        first, last = timings[0][1], timings[-1][1]
        pids = [
            [0 if _is_dormant(region) else region[ProcessCounter.PID] for region in regions] for regions in self.regions
        ]
        detailed_stages = tuple(
            replace(
                stage,
                rss_bytes=sum(map(self._measure_rss_bytes, of_stage)),
                run_ns=_compare_histograms(first.stages[own[0]].run_histogram, last.stages[own[0]].run_histogram)
                if own
                else LivePercentiles(),
            )
            for stage, of_stage, own in zip(stages, [*pids, [self._pid]], [*names, ()], strict=True)
        )
        detailed_hops = tuple(
            replace(
                hop,
                cost_ns=_compare_histograms(before.phase_histograms["cost_ns"], after.phase_histograms["cost_ns"]),
                queue_ns=_compare_histograms(before.phase_histograms["queue_ns"], after.phase_histograms["queue_ns"]),
            )
            for hop, before, after in zip(hops, first.hops, last.hops, strict=True)
        )
        return detailed_stages, detailed_hops

    def _find_process(self, pid: int) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error):
            process = self._processes.get(pid) or self._processes.setdefault(pid, psutil.Process(pid))
            return process if process.is_running() else None
        return None

    def _measure_rss_bytes(self, pid: int) -> int:
        """Return the resident memory. For proportional memory, the kernel would walk all pages and delay the worker."""
        process = self._find_process(pid) if pid else None
        with contextlib.suppress(psutil.Error):
            return int(process.memory_info().rss) if process is not None else 0
        return 0

    def _fold(self, run: LiveRun) -> LiveRun:
        """Merge the rows of the inner processes of a source or sink, so that rows match the config."""
        members = zip(self.description.rows, run.stages, strict=True)
        return replace(
            run,
            stages=tuple(
                _fold_row(name, [stage for _, stage in group])
                for name, group in groupby(members, lambda member: member[0][0])
            ),
            hops=tuple(hop for hop in run.hops if hop.source != hop.target),
        )


def _is_dormant(region: ProcessRegion) -> bool:
    return region[ProcessCounter.PROCESS_STATE] == ProcessState.DORMANT


def compare_looks(first: LiveStage, last: LiveStage, known: LiveStage | None) -> LiveStage:
    """Return a row with rates and shares between two readings, or `known` if all its workers were in a function.

    >>> compare_looks(LiveStage(name="a"), LiveStage(name="a", covered_ns=10**9, busy_ns=9 * 10**8, items=3), None).busy
    0.9
    """
    covered_ns = last.covered_ns - first.covered_ns
    if known is not None and not covered_ns:
        return replace(known, is_starting=last.is_starting, workers=last.workers, ready_workers=last.ready_workers)
    workers = (first.workers + last.workers) / 2

    def share(field: str) -> float:
        counted: int = getattr(last, field) - getattr(first, field)
        return max(counted, 0) / max(covered_ns, 1)

    return replace(
        last,
        items_per_s=share("items") * 1e9 * workers,
        busy=min(share("busy_ns"), 1.0),
        starved=min(share("starved_ns"), 1.0),
        blocked=min(share("blocked_ns"), 1.0),
        work=min(share("busy_ns") + share("hop_ns"), 1.0),
        queued=share("queue_ns") * workers,
    )


def count_in_source_items(description: RunDescription, run: LiveRun) -> tuple[LiveStage, ...]:
    """Return the rows of a run with items and rates in source items: a batch of 32 counts 32 times.

    The outputs of a generator and the parts of a sink count by the mean ratio so far. Dropped items do not count.
    """
    factor, scaled = 1.0, []
    for index, (stage, hop) in enumerate(zip(run.stages, (*run.hops, None), strict=True)):
        items = stage.items if factor == 1 else min(round(stage.items * factor), run.items_sent)
        scaled.append(replace(stage, items=items, items_per_s=stage.items_per_s * factor))
        if hop is not None and index:
            items_per_output = description.processes[index].items_per_output
            is_generator = hop.messages > _MIN_GENERATOR_RATIO * stage.received
            if not items_per_output or (items_per_output == 1 and is_generator):
                factor *= stage.received / max(hop.messages, 1)
            else:
                factor *= items_per_output
    return tuple(scaled)


class _ProcessReader:
    """Reads the counters of the workers of one process. It finds its words once, because it reads them often."""

    def __init__(self, regions: Sequence[ProcessRegion]) -> None:
        self.regions = regions
        self._stages = [[region.stage_region(index) for region in regions] for index in range(regions[0].stage_count)]
        self._receive_words = [region.receive_histogram_words for region in regions]
        self._send_words = [region.send_histogram_words for region in regions]

    def read(self, process: ProcessDescription) -> LiveStage:
        now_ns = perf_counter_ns()
        counters = [[region.read_counters() for region in regions] for regions in self._stages]
        counts = tuple(
            StageTally.from_counters(name, [sum(each) for each in zip(*of_stage, strict=True)])
            for name, of_stage in zip(process.rows, counters, strict=True)
        )
        workers = [region.read_counters() for region in self.regions]  # all counters at once: indexing is slower
        states = [worker[ProcessCounter.PROCESS_STATE] for worker in workers]
        present = sum(map(is_present, states))
        ready = present - states.count(ProcessState.STARTING)
        written = [worker for worker in workers if worker[ProcessCounter.FLUSHED_NS]]
        started = [worker for worker in workers if worker[ProcessCounter.STARTED_NS]]
        fields: dict[str, Any] = {
            field: sum([worker[counter] for worker in workers]) for field, counter in _PROCESS_COUNTERS.items()
        }
        fields |= {field: sum([getattr(each, field) for each in counts]) for field in _COUNTS}
        fields["starting_ns"] += sum(
            [
                (worker[ProcessCounter.READY_NS] or worker[ProcessCounter.STOPPED_NS] or now_ns)
                - worker[ProcessCounter.STARTED_NS]
                for worker in started
            ]
        )
        return LiveStage(
            name=process.rows[0],
            kind=process.kind,
            fused=tuple(row for row in dict.fromkeys(process.rows) if row != process.rows[0]),
            workers=present,
            min_workers=process.min_workers,
            max_workers=process.max_workers,
            is_starting=ready < min(present, process.workers),  # an added worker that starts does not count
            ready_workers=ready,
            restarts=sum(
                [max(each[ProcessCounter.INCARNATION] - each[ProcessCounter.PLANNED_STARTS], 0) for each in workers]
            ),
            items=counts[-1].items,
            covered_ns=sum(
                [worker[ProcessCounter.FLUSHED_NS] - worker[ProcessCounter.STARTED_NS] for worker in written]
            ),
            wall_ns=sum(
                [
                    max((worker[ProcessCounter.STOPPED_NS] or now_ns) - worker[ProcessCounter.STARTED_NS], 0)
                    for worker in started
                ]
            ),
            hop_ns=sum([int(words[_SEND_SUM_WORDS].sum()) for words in self._send_words])
            + sum([int(words[_RECEIVE_SUM_WORDS].sum()) for words in self._receive_words]),
            received=counts[0].items + counts[0].passed_by,
            queue_ns=sum([int(words[QUEUE_SUM_WORD]) for words in self._receive_words]),
            worker_loads=tuple(
                WorkerLoad(
                    items=of_worker[0][StageCounter.ITEMS],
                    busy_ns=sum([each[StageCounter.BUSY_NS] for each in of_worker]),
                )
                for worker, of_worker in zip(workers, zip(*counters, strict=True), strict=True)
                if worker[ProcessCounter.STARTED_NS]
            ),
            stages=counts,
            **fields,
        )

    def read_hop(self, source: str, target: str) -> LiveHop:
        """Return the output hop of the workers."""
        counts = {field: self.sum(counter) for field, counter in _HOP_COUNTERS.items()}
        messages = sum(count for field, count in counts.items() if field.endswith("_messages"))
        return replace(LiveHop(source=source, target=target, messages=messages), **counts)

    def sum(self, counter: ProcessCounter) -> int:
        """Return the sum of a counter over the workers."""
        return sum([region[counter] for region in self.regions])


def _fold_row(name: str, stages: Sequence[LiveStage]) -> LiveStage:
    """Merge the processes of a source, stage or sink into one row, with the shares of the busiest process."""
    main = max(stages, key=lambda stage: (stage.work, stage.workers, stage.busy_ns))
    widest = max(stages, key=lambda stage: stage.workers)
    counts = [each for stage in stages for each in stage.stages]
    return replace(
        main,
        name=name,
        kind=stages[0].kind,
        fused=tuple(dict.fromkeys(fused for stage in stages for fused in stage.fused if fused != name)),
        workers=widest.workers,
        min_workers=widest.min_workers,
        max_workers=widest.max_workers,
        ready_workers=widest.ready_workers,
        is_starting=any(stage.is_starting for stage in stages),
        items=stages[-1].items,
        items_per_s=stages[0 if main.kind == "sink" else -1].items_per_s,  # a sink finishes parts too rarely for a rate
        queued=stages[0].queued,
        run_ns=max((stage.run_ns for stage in stages), key=lambda run_ns: run_ns.p50),
        stages=tuple(_add_counts(list(group)) for _, group in groupby(counts, lambda each: each.name)),
        **{field: sum(getattr(stage, field) for stage in stages) for field in _SUMMED_FIELDS},
    )


def _add_counts(counts: Sequence[StageTally]) -> StageTally:
    """Sum the counts of a row's inner stages. The row's items are the items that the last stage finished."""
    fields = (*_COUNTS, "passed_by")
    return replace(counts[-1], **{field: sum(getattr(each, field) for each in counts) for field in fields})


def _compare_histograms(first: Histogram, last: Histogram) -> LivePercentiles:
    """Return the percentiles of the values between two readings, or of all values if there are no new ones."""
    recent = last - first
    histogram = recent if recent.count else last
    return LivePercentiles(p50=histogram.percentile_ns(50), p99=histogram.percentile_ns(99))
