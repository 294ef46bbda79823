"""Running a pipeline to its end, into its sink: what `stagepipe run` does."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagepipe.config import Target
from stagepipe.core import RunError
from stagepipe.core.targets import build, require_callable, resolve
from stagepipe.engine.pipeline import Pipeline
from stagepipe.engine.resume import StateFile
from stagepipe.report import Progress
from stagepipe.runtime.failures import message_of, trace_of

_EVERY_S = 0.2


def drain(pipeline: Pipeline, tell: Callable[[Progress], None], state: StateFile | None = None) -> None:
    """Run one epoch; each item goes to the sink (without one it is dropped). `tell` hears of the progress meanwhile.

    `state` says how far the sink had come when it was loaded, and is kept up to date.
    """
    had = 0 if state is None else state.had
    ended, handed = threading.Event(), True

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            tell(pipeline.progress())

    watcher = threading.Thread(target=watch, name="stagepipe-progress", daemon=True)
    sink, close = _sink(pipeline.spec.sink, pipeline.spec.config_dir, had)
    pipeline.start()
    watcher.start()
    try:
        for number, item in enumerate(pipeline, had):
            handed = False
            try:
                sink(item)
            except Exception as error:
                message = f"sink, item {number}: {message_of(error)}"
                raise RunError(message, stage="sink", worker=0, item=str(number), trace=trace_of(error)) from error
            del item
            handed = True
            if state is not None:
                state.save_sometimes(pipeline)
        tell(pipeline.progress())
    finally:
        ended.set()
        watcher.join()
        close()
        if state is not None and handed:  # else the sink has not had all that the state would speak of
            state.save(pipeline)


def _drop(item: Any) -> None:
    """No sink: the item is counted and dropped."""


def _nothing() -> None:
    """A sink without `close`."""


def _takes_start(uses: object, config_dir: Path | None) -> bool:
    found: Any = resolve(uses, config_dir) if isinstance(uses, str) else uses
    return "start" in inspect.signature(found).parameters


def _sink(target: Target | None, config_dir: Path | None, had: int) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    """The sink and its end. One that takes `start` is told how many items it `had` in a run before this."""
    if target is None:
        return _drop, _nothing
    try:
        start = {"start": had} if had and _takes_start(target.uses, config_dir) else {}
        sink = build(target.uses, {**target.arguments, **start}, config_dir)
    except Exception as error:
        message = f"sink: cannot be built: {message_of(error)}"
        raise RunError(message, stage="sink", worker=0, trace=trace_of(error)) from error
    return require_callable(sink, target.uses), getattr(sink, "close", _nothing)
