"""Runs a pipeline to its end, into its sink. In the main process of `stagepipe run`."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagepipe.api.pipeline import Pipeline
from stagepipe.api.state_file import StateFile
from stagepipe.core import RunError, build_target, import_target, require_callable
from stagepipe.report import Progress
from stagepipe.runtime import format_error, format_user_traceback
from stagepipe.spec import Target

_PROGRESS_INTERVAL_S = 0.2
"""Time between two calls of `on_progress`: five updates per second."""


def run_to_sink(
    pipeline: Pipeline, on_progress: Callable[[Progress], None], state_file: StateFile | None = None
) -> None:
    """Run one epoch and pass each item to the sink, or drop it if there is none. Another thread calls `on_progress`.

    `state_file` holds the number of items that the sink had received when it was loaded. It is kept up to date, from
    before the first item on: so a run that is killed at any moment resumes with the items that its sink has.
    Raises RunError if the run or the sink fails.
    """
    items_delivered = None if state_file is None else state_file.items_delivered
    is_delivered = True
    owner_pid = os.getpid()
    stop_event = threading.Event()

    def report_progress() -> None:
        while not stop_event.wait(_PROGRESS_INTERVAL_S):
            on_progress(pipeline.progress())

    progress_thread = threading.Thread(target=report_progress, name="stagepipe-progress", daemon=True)
    sink, close_sink = _build_sink(pipeline.spec.sink, pipeline.spec.config_dir, items_delivered)
    if state_file is not None:
        state_file.save(pipeline)
    pipeline.start()
    progress_thread.start()
    try:
        for item_number, item in enumerate(pipeline, items_delivered or 0):
            is_delivered = False
            try:
                sink(item)
            except Exception as error:
                message = f"sink, item {item_number}: {format_error(error)}"
                raise RunError(
                    message, stage="sink", worker=0, item=str(item_number), trace=format_user_traceback(error)
                ) from error
            del item
            is_delivered = True
            if state_file is not None:
                state_file.save_if_due(pipeline)
        on_progress(pipeline.progress())
    finally:
        if os.getpid() == owner_pid:  # else a sink has forked, and this child ends: sink and state are its parent's
            stop_event.set()
            progress_thread.join()
            close_sink()
            if state_file is not None and is_delivered:  # otherwise the sink lacks the last item that the state counts
                state_file.save(pipeline)


def _discard_item(item: Any) -> None:
    """Stand in for a missing sink: the item is counted and dropped."""


def _close_nothing() -> None:
    """Stand in for the `close` of a sink that has none."""


def _has_start_parameter(sink_target: object, config_dir: Path | None) -> bool:
    sink: Any = import_target(sink_target, config_dir) if isinstance(sink_target, str) else sink_target
    return "start" in inspect.signature(sink).parameters


def _build_sink(
    target: Target | None, config_dir: Path | None, items_delivered: int | None
) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    """Build the sink; return it and its `close`.

    If it takes `start`, it gets the number of items that an earlier run delivered; nothing for a new run.
    """
    if target is None:
        return _discard_item, _close_nothing
    try:
        has_start = items_delivered is not None and _has_start_parameter(target.uses, config_dir)
        start_argument = {"start": items_delivered} if has_start else {}
        sink = build_target(target.uses, {**target.arguments, **start_argument}, config_dir)
    except Exception as error:
        message = f"sink: cannot be built: {format_error(error)}"
        raise RunError(message, stage="sink", worker=0, trace=format_user_traceback(error)) from error
    return require_callable(sink, target.uses), getattr(sink, "close", _close_nothing)
