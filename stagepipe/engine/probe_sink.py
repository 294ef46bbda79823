"""Runs the sinks of a pipeline in a probe, where they can write to a temporary folder. In the process of the caller."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any, BinaryIO, Final

from stagepipe.core import RunError, build_target, require_callable
from stagepipe.forecast import PartSample
from stagepipe.plan import Plan
from stagepipe.runtime import format_error, format_user_traceback
from stagepipe.sinks import MeasuredPartRecord, MeasuredSink, Part, PartSink
from stagepipe.spec import SinkSpec, Target

_BUILT_IN_SINKS: Final = "stagepipe.sinks"
_FOLDER_ARGUMENT: Final = "path"
_COPY_BYTES: Final = 1 << 20
_MAX_SHARD_BYTES: Final = 64 << 20
"""The shard of a probe begins again at this size: it is measured, never read."""
_MAX_WRITTEN_ITEMS: Final = 2048
"""Items that sinks of this process write in a probe: it may go on to reach a stage, and its folder must not grow."""


class ProbeSinks:
    """Takes what a probe yields: items for sinks of this process, or the parts that workers have written.

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
        """`runs_all`: `item_sinks` and `part_sinks` are all sinks of the run."""
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
        """The mean time of the sinks of this process, without the first if there are several; None if not known."""
        if not self._runs_all:
            return None
        if not self._item_sinks:
            return 0.0
        return _average_later(self._durations_ns)

    @property
    def mean_waiting_ns(self) -> float:
        """What of that time is no CPU time of this process."""
        return _average_later(self._waits_ns)

    def close(self) -> None:
        """Close the shards."""
        for collector in self._collectors:
            collector.close()

    @property
    def part_samples(self) -> tuple[tuple[PartSample, ...], ...]:
        """The parts of each sink with workers."""
        return tuple(tuple(collector.samples) for collector in self._collectors)


def _average_later(durations_ns: Sequence[int]) -> float:
    """The mean without the first, if there are several."""
    later_ns = durations_ns[1:] or durations_ns
    return sum(later_ns) / max(len(later_ns), 1)


class _PartCollector:
    """Makes one shard of a sink's parts, as a run does, and measures it. Nothing is made durable: a run rarely does."""

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
        if path is not None and path.is_file():  # a folder of files is only moved
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
        """Append a part to the shard; return how long the copy took."""
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
    """Build the sinks of a plan to write to a temporary folder. A sink that is neither built in nor has workers is not.

    `runs_all`: such sinks are built too, as the config says. Raises RunError for a sink that cannot be built.
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
    """Whether a sink is built in and writes to a folder that an argument names."""
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
