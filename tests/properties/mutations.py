"""Defects put back, to show that the property notices them. In this process, and in each worker that starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stagepipe.core import stage_locals
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.runtime.protocol.worker_spec import WorkerSpec
from stagepipe.testing import worker_start_hook

_seed_source_item = StageRunner.seed_source_item


@contextlib.contextmanager
def streams_seeded_once() -> Iterator[None]:
    """Seed a stream once an epoch, not before each item: its draws then depend on what else runs in its process."""
    seed_streams_once()
    try:
        with worker_start_hook(f"{__name__}:{seed_streams_once.__name__}"):
            yield
    finally:
        StageRunner.seed_source_item = _seed_source_item  # type: ignore[method-assign]


def seed_streams_once(spec: WorkerSpec | None = None) -> None:
    """Apply the mutation in this process. The start hook of the workers."""
    del spec
    StageRunner.seed_source_item = _seed_first_item  # type: ignore[method-assign]


def _seed_first_item(stage: StageRunner, number: int) -> None:
    if not number:
        _seed_source_item(stage, number)
    else:
        stage_locals.context = stage._context  # the context of the stream, and no seed
