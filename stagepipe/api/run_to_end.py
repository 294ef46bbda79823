"""Runs a pipeline to its end, into its sinks, and keeps the file of `stagepipe run --resume`. In its main process."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from stagepipe.api.pipeline import Pipeline
from stagepipe.api.shard_output import ShardOutput, build_sink
from stagepipe.core import RunError, UsageError, UserCode, build_target, import_target, require_callable
from stagepipe.report import LiveRun
from stagepipe.runtime import format_error, format_user_traceback
from stagepipe.sinks import Part
from stagepipe.spec import Target

_PROGRESS_INTERVAL_S = 0.2
"""Time between two calls of `on_progress`: five updates per second."""


_SAVE_INTERVAL_S: Final = 0.5
"""Time between saves, which take about 0.1 ms. After a kill, the sink gets the items since the last save again."""


class StateFile:
    """The state of a run in a file. A save is atomic: the file holds the new state or the previous one."""

    def __init__(self, path: Path) -> None:
        """Use the file at `path`. If it is missing, the run starts at its beginning."""
        self._path = path
        # One name for all runs, so the next run overwrites the file of a killed run.
        self._partial_path = path.with_name(f".{path.name}.stagepipe-partial")
        self._last_save_s = monotonic()
        self.items_delivered: int | None = None
        """Number of items that the sink had received when the state was loaded; None if there was no state."""

    def load(self, pipeline: Pipeline, *, allow_changed: bool = False) -> bool:
        """Load the state into `pipeline`. Return False if that run is finished.

        Raises UsageError if the file cannot be written, does not hold a state, or holds the state of a different
        config; see `Pipeline.load_state_dict`.
        """
        first_epoch = pipeline.epoch
        content = self._read()
        if content is None:
            self._check_writable()
            return True
        try:
            pipeline.load_state_dict(self._decode(content), allow_changed=allow_changed)
        except UsageError as error:
            raise self._make_usage_error(str(error)) from error
        self._check_writable()
        self.items_delivered = pipeline.items_yielded
        return pipeline.epoch <= first_epoch

    def _read(self) -> bytes | None:
        """Return the content of the file, or None if it is missing."""
        if self._path.exists() and not self._path.is_file():
            raise self._make_usage_error("this is not a file; name another one")
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._make_damage_error(error.strerror or error) from error

    def _decode(self, content: bytes) -> Any:
        try:
            return msgspec.json.decode(content)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._make_damage_error(error) from error

    def _make_damage_error(self, reason: object) -> UsageError:
        return self._make_usage_error(
            f"it does not hold the state of a run ({reason}); use another file, or delete it to start over"
        )

    def _check_writable(self) -> None:
        """Raise UsageError if no state can be written, before the run rather than hours later."""
        try:
            self._partial_path.write_bytes(b"")
            self._partial_path.unlink()
        except OSError as error:
            message = f"the state cannot be written there ({error.strerror}); use a file in another folder"
            raise self._make_usage_error(message) from error

    def _make_usage_error(self, problem: str) -> UsageError:
        return UsageError(f"--resume {self._path}: {problem}")

    def save_if_due(self, pipeline: Pipeline) -> None:
        """Save the state if the last save is more than half a second ago."""
        if monotonic() - self._last_save_s > _SAVE_INTERVAL_S:
            self.save(pipeline)

    def save(self, pipeline: Pipeline) -> None:
        """Save the state. The sink must have received all items up to it. Raises RunError if writing fails."""
        self._last_save_s = monotonic()
        text = json.dumps(pipeline.state_dict())
        try:
            self._partial_path.write_text(text)
            self._partial_path.replace(self._path)
        except OSError as error:
            message = (
                f"the state cannot be written to {self._path}: {error.strerror}; free disk space and resume, which "
                "delivers the items since the last save again"
            )
            raise RunError(message) from error


def run_to_sink(
    pipeline: Pipeline,
    on_progress: Callable[[LiveRun], None],
    state_file: StateFile | None = None,
    *,
    shards: ShardOutput | None = None,
) -> None:
    """Run one epoch and pass each item to the sinks, if there are any. Another thread calls `on_progress`.

    `state_file` holds the number of items that the sinks had received when it was loaded. It is updated from before the
    first item on, so a run that is killed at any moment resumes with the items that its sinks have.
    `shards` takes the output of sinks with workers, and keeps the state instead of a file. After an interrupt, nothing
    more is saved: a resume continues from the last save, at most half a second earlier.
    Raises RunError if the run or a sink fails.
    """
    items_delivered = None if state_file is None else state_file.items_delivered
    if shards is not None:
        items_delivered = shards.items_delivered or None
    sinks = _ItemSinks([s.target for s in pipeline.spec.sinks if not s.writes_parts], pipeline, items_delivered)
    output = _ItemOutput(pipeline, sinks, state_file) if shards is None else _PartOutput(sinks, shards)
    output.save()
    pipeline.deliver_to_sinks(None if shards is None else shards.count_written)
    pipeline.start()
    is_between_items = True
    is_state_exact = False
    with _report_progress(pipeline, on_progress):
        try:
            for item in pipeline:
                is_between_items = False
                output.write(item)
                del item
                output.save_if_due()
                is_between_items = True
            output.finish()
            is_state_exact = True
        except RunError:  # inside an item, a sink lacks the last item that the state counts, or a save has failed
            is_state_exact = is_between_items
            raise
        finally:
            sinks.close()
            if is_state_exact:  # after an interrupt, the state may count an item that no sink has received
                output.save()
    on_progress(pipeline.progress())


class _ItemOutput:
    """Passes items to sinks in this process, and keeps the state in a file, if there is one."""

    def __init__(self, pipeline: Pipeline, sinks: _ItemSinks, state_file: StateFile | None) -> None:
        self._pipeline = pipeline
        self._state_file = state_file
        self.write = sinks.write

    def save_if_due(self) -> None:
        if self._state_file is not None:
            self._state_file.save_if_due(self._pipeline)

    def save(self) -> None:
        if self._state_file is not None:
            self._state_file.save(self._pipeline)

    def finish(self) -> None:
        pass


class _PartOutput:
    """Takes the parts of sinks with workers. Sinks in this process get the items of the parts, at least once."""

    def __init__(self, sinks: _ItemSinks, shards: ShardOutput) -> None:
        self._sinks = sinks
        self._shards = shards
        self._is_finished = False

    def write(self, item: Part) -> None:
        for inner in item.read_items(copies=True):  # a sink may keep an item, which must not keep the part alive
            self._sinks.write(inner)
        self._shards.add(item)

    def save_if_due(self) -> None:
        self._shards.commit_if_due()

    def save(self) -> None:
        if not self._is_finished:
            self._shards.commit()

    def finish(self) -> None:
        self._is_finished = True  # a commit in the middle of `finish` would not mark the job as finished
        self._shards.finish()


@contextmanager
def _report_progress(pipeline: Pipeline, on_progress: Callable[[LiveRun], None]) -> Iterator[None]:
    """Call `on_progress` from another thread while the block runs."""
    stop_event = threading.Event()

    def report_progress() -> None:
        while not stop_event.wait(_PROGRESS_INTERVAL_S):
            on_progress(pipeline.progress())

    progress_thread = threading.Thread(target=report_progress, name="stagepipe-progress", daemon=True)
    progress_thread.start()
    try:
        yield
    finally:
        stop_event.set()
        progress_thread.join()


class _ItemSinks:
    """The sinks that this process calls with each item."""

    def __init__(self, targets: Sequence[Target], pipeline: Pipeline, items_delivered: int | None) -> None:
        """Build the sinks. Raises RunError if one cannot be built."""
        self._item_number = items_delivered or 0
        self._user_code = UserCode("sink")  # a child that a sink forks does not own the run, its state or its files
        self._sinks: list[tuple[Callable[[Any], Any], Callable[[], Any]]] = []
        for target in targets:
            self._sinks.append(_build_sink(target, pipeline.spec.config_dir, items_delivered))

    def write(self, item: Any) -> None:
        """Pass an item to all sinks. Raises RunError if one fails."""
        for sink, _ in self._sinks:
            try:
                with self._user_code:
                    sink(item)
            except Exception as error:
                message = f"sink, item {self._item_number}: {format_error(error)}"
                raise RunError(
                    message, stage="sink", worker=0, item=str(self._item_number), trace=format_user_traceback(error)
                ) from error
        self._item_number += 1

    def close(self) -> None:
        """Close each sink that has `close`."""
        for _, close_sink in self._sinks:
            with self._user_code:
                close_sink()


def _close_nothing() -> None:
    """Replace the `close` of a sink without one."""


def _has_start_parameter(sink_target: object, config_dir: Path | None) -> bool:
    sink: Any = import_target(sink_target, config_dir) if isinstance(sink_target, str) else sink_target
    return "start" in inspect.signature(sink).parameters


def _build_sink(
    target: Target, config_dir: Path | None, items_delivered: int | None
) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    """Build a sink; return it and its `close`.

    A sink with a parameter `start` gets the number of items that an earlier run delivered. A new run passes nothing.
    """

    def build() -> Any:
        has_start = items_delivered is not None and _has_start_parameter(target.uses, config_dir)
        start_argument = {"start": items_delivered} if has_start else {}
        with UserCode("sink"):
            return build_target(target.uses, {**target.arguments, **start_argument}, config_dir)

    sink = build_sink(build)
    return require_callable(sink, target.uses), getattr(sink, "close", _close_nothing)
