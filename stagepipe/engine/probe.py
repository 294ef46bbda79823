"""Runs a probe: sends items through real workers until each stage is measured.

Built-in sinks and sinks with workers write to a temporary folder.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import Enum
from itertools import chain
from pathlib import Path
from time import monotonic, perf_counter_ns, process_time_ns
from typing import Any, BinaryIO, Final

from stagepipe.core import RunError, build_target, require_callable
from stagepipe.engine.local import LocalRun
from stagepipe.forecast import PartSample, ProbeFigures
from stagepipe.machine import CpuLoadMeter, cpu_delay_ns, cpu_time_ns
from stagepipe.plan import Plan, ProbeResult, ProcessRole, make_probe_plan
from stagepipe.report import LiveRun
from stagepipe.runtime import format_error, format_user_traceback
from stagepipe.sinks import MeasuredPartRecord, MeasuredSink, Part, PartSink
from stagepipe.spec import SinkSpec, Target
from stagepipe.timing import ProcessCounter, ProcessRegion, StageCounter

_BUILT_IN_SINKS: Final = "stagepipe.sinks"
_FOLDER_ARGUMENT: Final = "path"
_COPY_BYTES: Final = 1 << 20
_MAX_SHARD_BYTES: Final = 64 << 20
"""Size at which the shard of a probe starts over: it is measured, never read."""
_MAX_WRITTEN_ITEMS: Final = 2048
"""Maximum items that this process's sinks write. A probe may run long to reach a stage; this limits its folder."""


class ProbeSinks:
    """Takes the output of a probe: items for the sinks of this process, or parts that workers have written.

    Workers write to `folder`, which is empty.
    """

    def __init__(
        self,
        folder: Path,
        item_sinks: Sequence[Callable[[Any], Any]],
        part_sinks: Sequence[PartSink],
        *,
        runs_all: bool,
    ) -> None:
        """`runs_all` means that `item_sinks` and `part_sinks` are all sinks of the run."""
        self.folder: Final = folder
        self._item_sinks = item_sinks
        self._runs_all = runs_all
        self._durations_ns: list[int] = []
        self._waits_ns: list[int] = []
        self._collectors = [_PartCollector(sink, folder, index) for index, sink in enumerate(part_sinks)]

    def write(self, item: Any) -> None:
        """Pass an item to the sinks."""
        if len(self._durations_ns) < _MAX_WRITTEN_ITEMS:
            self._write_item(item)
        if isinstance(item, Part):
            for collector, record in zip(self._collectors, item.records, strict=True):
                collector.add(item, record)

    def _write_item(self, item: Any) -> None:
        started_ns, started_cpu_ns = perf_counter_ns(), process_time_ns()
        for value in item.read_items(copies=True) if isinstance(item, Part) else [item]:
            for sink in self._item_sinks:
                sink(value)
        self._durations_ns.append(perf_counter_ns() - started_ns)
        self._waits_ns.append(max(self._durations_ns[-1] - (process_time_ns() - started_cpu_ns), 0))

    @property
    def mean_ns(self) -> float | None:
        """Mean time of this process's sinks per item, without the first of several; None if a sink does not run."""
        if not self._runs_all:
            return None
        if not self._item_sinks:
            return 0.0
        return _average_later(self._durations_ns)

    @property
    def mean_waiting_ns(self) -> float:
        """The part of `mean_ns` that is not CPU time of this process."""
        return _average_later(self._waits_ns)

    def close(self) -> None:
        """Close the shards."""
        for collector in self._collectors:
            collector.close()

    @property
    def part_samples(self) -> tuple[tuple[PartSample, ...], ...]:
        """The measured parts of each sink with workers."""
        return tuple(tuple(collector.samples) for collector in self._collectors)


def _average_later(durations_ns: Sequence[int]) -> float:
    """Return the mean, leaving out the first value if there are several."""
    later_ns = durations_ns[1:] or durations_ns
    return sum(later_ns) / max(len(later_ns), 1)


class _PartCollector:
    """Assembles a sink's parts into one shard, as a run does, and measures it. Skips the rare fsync of a run."""

    def __init__(self, sink: PartSink, folder: Path, index: int) -> None:
        self._sink = sink
        self._folder = folder
        self._shard_path = folder / f"shard-{index}"
        self._file: BinaryIO | None = None
        self._kept: dict[str, Any] = {}
        self.samples: list[PartSample] = []

    def add(self, part: Part, record: Any) -> None:
        """Add a part to the shard."""
        if not isinstance(record, MeasuredPartRecord):
            return
        started_ns = perf_counter_ns()
        copy_ns = 0
        path = None if record.file is None else self._folder / record.file
        if path is not None and path.is_file():  # a run moves a folder of files without reading it
            self._sink.prepare_part(path, self._kept)
            copy_ns = self._append(path) if self._sink.appends else 0
        collect_ns = perf_counter_ns() - started_ns
        MeasuredSink.remove_part(path)
        self.samples.append(
            PartSample(
                items=part.item_count,
                rows=record.rows,
                write_ns=record.write_ns,
                half_rows=record.half_rows,
                half_write_ns=record.half_write_ns,
                item_bytes=record.item_bytes,
                collect_ns=collect_ns,
                copy_ns=copy_ns,
            )
        )

    def _append(self, path: Path) -> int:
        """Append a part to the shard, and return the time of the copy."""
        if self._file is None:
            self._file = self._shard_path.open("w+b")
            self._sink.begin_shard(self._file, self._kept)
        elif self._file.tell() > _MAX_SHARD_BYTES:
            self._file.seek(0)
            self._file.truncate()
        with path.open("rb") as part:
            started_ns = perf_counter_ns()
            shutil.copyfileobj(part, self._file, _COPY_BYTES)
            self._file.flush()
            return perf_counter_ns() - started_ns

    def close(self) -> None:
        """Close the shard."""
        if self._file is not None:
            self._file.close()


@contextmanager
def open_probe_sinks(plan: Plan, *, runs_all: bool) -> Iterator[ProbeSinks]:
    """Build the sinks of a plan, writing to a temporary folder. Skips custom sinks without workers.

    With `runs_all`, it builds those too, with the arguments in the config. Raises RunError for a sink that cannot be
    built.
    """
    has_writers = any(process.first_stage.sink_path for process in plan.processes)
    writers = [sink for sink in plan.sinks if sink.writes_parts and has_writers]
    others = [sink for sink in plan.sinks if not sink.writes_parts]
    known = [sink for sink in others if runs_all or _writes_to_folder(sink.target)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stagepipe-probe-")))
        item_sinks = [_build_item_sink(sink, folder / f"sink-{i}", plan.config_dir) for i, sink in enumerate(known)]
        for sink in item_sinks:
            stack.callback(getattr(sink, "close", lambda: None))
        part_sinks = [_build(sink.target, sink.target.arguments, plan.config_dir) for sink in writers]
        sinks = ProbeSinks(folder, item_sinks, part_sinks, runs_all=len(known) + len(writers) == len(plan.sinks))
        stack.callback(sinks.close)
        yield sinks


def _writes_to_folder(target: Target) -> bool:
    """Return whether a sink is built in and has an argument that names its output folder."""
    uses = target.uses
    name = uses if isinstance(uses, str) else getattr(uses, "__module__", "")
    return name.startswith(_BUILT_IN_SINKS) and _FOLDER_ARGUMENT in target.arguments


def _build_item_sink(sink: SinkSpec, folder: Path, config_dir: Path | None) -> Callable[[Any], Any]:
    arguments = dict(sink.target.arguments)
    if _writes_to_folder(sink.target):
        arguments[_FOLDER_ARGUMENT] = str(folder)
    return require_callable(_build(sink.target, arguments, config_dir), sink.target.uses)


def _build(target: Target, arguments: Any, config_dir: Path | None) -> Any:
    try:
        return build_target(target.uses, arguments, config_dir)
    except Exception as error:
        message = f"sink: cannot be built: {format_error(error)}"
        raise RunError(message, stage="sink", worker=0, trace=format_user_traceback(error)) from error


_MAX_PROBE_S = 60.0
"""Time after which a probe always ends. The clock starts when all workers are ready, and stops during the first call of
a stage, which may load a model. One item is in flight at a time, so 60 s bring a batch of 256 through stages that take
0.2 s per item. The user waits for the probe."""

_MAX_LOADING_S = 300.0
"""Maximum time of first calls that does not count: 15 GB from a network file system at 50 MB/s. It may be a hang."""

_MIN_WARM_SOURCE_ITEMS = 5
_MIN_WARM_ITEMS = 2
"""Items that each stage must process before the pipeline is warm, because its first item may load libraries or a model.
One part is enough for a sink, which writes its first part several times."""

_POLL_INTERVAL_S = 0.02


class ProbeTimeLimitError(RunError):
    """The probe reached its time limit."""


class ProbeLength(Enum):
    """Seconds that a probe continues once the pipeline is warm. After that it has measured enough."""

    BRIEF = 0.5  # before a run: its own items come soon, so the probe does not wait for a first output
    FULL = 5.0


def run_probe(plan: Plan, length: ProbeLength = ProbeLength.FULL, *, runs_all_sinks: bool = False) -> ProbeFigures:
    """Run the plan's stages on its first items: a few, or in a full probe enough to reach all stages.

    Sinks with workers, and built-in sinks, write to a temporary folder. With `runs_all_sinks`, the other sinks run too,
    and their output stays. Raises RunError if a stage fails, and ReadOnceError (a RunError) if the source can be read
    only once.
    """
    load_meter = CpuLoadMeter()
    with open_probe_sinks(plan, runs_all=runs_all_sinks) as sinks:
        probe_plan = make_probe_plan(plan, sinks.folder)
        enough_items = probe_plan.limit
        if length is ProbeLength.FULL:
            probe_plan = replace(probe_plan, limit=plan.limit)
        with LocalRun(probe_plan) as run, limit_duration(run, length, enough_items) as clock:
            try:
                for item in run.iter_epoch(0):
                    sinks.write(item)
                    del item
            except ProbeTimeLimitError:
                pass
            probe_results = _collect_results(run)  # before the workers end, while the kernel knows their CPU times
            other_cpus = load_meter.measure_other_cpus()
        return ProbeFigures(
            record=run.make_record(),
            results_by_process=probe_results,
            sink_ns=sinks.mean_ns,
            sink_waiting_ns=sinks.mean_waiting_ns,
            part_samples=sinks.part_samples,
            other_cpus=other_cpus,
            probed_s=clock.probed_s,
            items_before=clock.items_before,
            usual_items=enough_items or 0,
        )


def _collect_results(run: LocalRun) -> dict[str, ProbeResult]:
    """Return the measurements of the processes so far, by process name. Each process has one worker."""
    return {
        process.name: ProbeResult(
            items=tuple(sample.item for sample in samples),
            cpu_ns=tuple(sample.cpu_ns for sample in samples),
            cpu_delay_ns=tuple(sample.cpu_delay_ns for sample in samples),
            final_cpu_ns=cpu_time_ns(region[ProcessCounter.PID]),
            final_cpu_delay_ns=cpu_delay_ns(region[ProcessCounter.PID]),
        )
        for index, (process, [region]) in enumerate(zip(run.plan.processes, run.regions, strict=True))
        if (samples := tuple(run.probe_samples.get(index, ())))
    }


class ProbeClock:
    """Ends a probe that has measured enough or takes too long. A thread calls `tick`."""

    def __init__(self, run: LocalRun, length: ProbeLength, enough_items: int | None) -> None:
        """`enough_items` is the number of source items that is enough once the pipeline is warm; None for no number."""
        self.probed_s = 0.0
        """Time since all workers were ready, without first calls."""
        self.items_before: dict[str, int] = {}
        """Source items sent before a stage's first item, for each stage that has had one."""
        self._run = run
        self._length = length
        self._enough_items = enough_items
        self._ticked_at_s = monotonic()
        self._loading_s = 0.0
        self._warm_s = 0.0

    def tick(self) -> bool:
        """Count the time since the last call. Return whether the probe must end."""
        now_s = monotonic()
        elapsed_s, self._ticked_at_s = now_s - self._ticked_at_s, now_s
        figures = self._run.read_figures()
        if figures.starting:
            return False
        if self._loading_s < _MAX_LOADING_S and any(map(_is_in_first_call, chain(*self._run.regions))):
            self._loading_s += elapsed_s
        else:
            self.probed_s += elapsed_s
        self._note_first_items(figures)
        if self.probed_s > _MAX_PROBE_S:
            return True
        if not _is_warm(self._run.plan, figures, self._length):
            return False
        self._warm_s += elapsed_s
        has_enough = self._enough_items is not None and _has_enough(self._run.plan, figures, self._enough_items)
        return has_enough or self._warm_s > self._length.value

    def _note_first_items(self, figures: LiveRun) -> None:
        """Note the stages with items since the last call. Items that they had meanwhile were not before their first."""
        for process, row in list(zip(self._run.plan.processes, figures.stages, strict=False))[1:]:
            for stage, tally in zip(process.stages, row.stages, strict=True):
                if tally.items:
                    self.items_before.setdefault(stage.name, max(figures.items_sent - tally.items - tally.passed_by, 0))


@contextmanager
def limit_duration(
    run: LocalRun, length: ProbeLength = ProbeLength.FULL, enough_items: int | None = None
) -> Iterator[ProbeClock]:
    """Abort the run when its time is over; its iteration then raises RunError."""
    clock = ProbeClock(run, length, enough_items)
    probe_ended = threading.Event()

    def watch() -> None:
        while not probe_ended.wait(_POLL_INTERVAL_S):
            if clock.tick():
                run.abort_epoch(ProbeTimeLimitError("the probe reached its time limit"))
                return

    time_limit_thread = threading.Thread(target=watch, name="stagepipe-probe", daemon=True)
    time_limit_thread.start()
    try:
        yield clock
    finally:
        probe_ended.set()
        time_limit_thread.join()


def _has_enough(plan: Plan, figures: LiveRun, source_items: int) -> bool:
    """Return whether each stage has had its items of `source_items` source items, if none is dropped or passes by."""
    needed = source_items
    if figures.items_sent < needed:
        return False
    for process, row in list(zip(plan.processes, figures.stages, strict=False))[1:]:
        if any(tally.items < needed - 1 for tally in row.stages):  # one item is in flight
            return False
        needed //= process.first_stage.items_per_output
    return True


def _is_in_first_call(worker: ProcessRegion) -> bool:
    """Return whether a worker processes an item in a stage that has finished none: it may be loading a model."""
    if not worker[ProcessCounter.CURRENT_ITEM_PLUS_ONE] and not any(slot.key for slot in worker.slots):
        return False
    stage = worker.stage_region(worker[ProcessCounter.CURRENT_STAGE])
    return not stage[StageCounter.ITEMS] and not stage[StageCounter.PASSED_BY]


def _is_warm(plan: Plan, figures: LiveRun, length: ProbeLength) -> bool:
    """Return whether every stage has had items. A full probe also waits for the first item at the end."""
    if figures.items_sent < _MIN_WARM_SOURCE_ITEMS or (length is ProbeLength.FULL and not figures.items_out):
        return False
    roles = [process.role for process in plan.processes]
    last_stage = max((index for index, role in enumerate(roles) if role is ProcessRole.STAGE), default=0)
    return all(
        tally.items >= (1 if process.first_stage.sink_path else _MIN_WARM_ITEMS)
        for process, row in list(zip(plan.processes, figures.stages, strict=False))[1 : last_stage + 1]
        for tally in row.stages
    )
