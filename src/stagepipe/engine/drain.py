"""Running a pipeline to its end, into its sink: what `stagepipe run` does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagepipe.config import Target
from stagepipe.core import RunError
from stagepipe.core.targets import build, require_callable
from stagepipe.engine.pipeline import Pipeline
from stagepipe.report import Progress
from stagepipe.runtime.failures import message_of, trace_of

_EVERY_S = 0.2


def drain(pipeline: Pipeline, tell: Callable[[Progress], None]) -> None:
    """Run one epoch; each item goes to the sink (without one it is dropped). `tell` hears of the progress meanwhile."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            tell(pipeline.progress())

    watcher = threading.Thread(target=watch, name="stagepipe-progress", daemon=True)
    sink, close = _sink(pipeline.spec.sink, pipeline.spec.config_dir)
    pipeline.start()
    watcher.start()
    try:
        for number, item in enumerate(pipeline):
            try:
                sink(item)
            except Exception as error:
                message = f"sink, item {number}: {message_of(error)}"
                raise RunError(message, stage="sink", worker=0, item=str(number), trace=trace_of(error)) from error
            del item
        tell(pipeline.progress())
    finally:
        ended.set()
        watcher.join()
        close()


def _drop(item: Any) -> None:
    """No sink: the item is counted and dropped."""


def _nothing() -> None:
    """A sink without `close`."""


def _sink(target: Target | None, config_dir: Path | None) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    if target is None:
        return _drop, _nothing
    try:
        sink = build(target.uses, target.arguments, config_dir)
    except Exception as error:
        message = f"sink: cannot be built: {message_of(error)}"
        raise RunError(message, stage="sink", worker=0, trace=trace_of(error)) from error
    return require_callable(sink, target.uses), getattr(sink, "close", _nothing)
