"""Whether a source and the `Batch` after it exchange chunks: several consecutive items in one packet. Pure.

The source then sends the indices of many items at once, and a reader their samples, stacked; `Batch` copies ranges of
rows. So a tiny sample does not pay for two packets of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from stagepipe.core import get_class_path
from stagepipe.plan.model import HopPlan, ProcessPlan, StagePlan

_DATASET_SOURCES: Final = frozenset({"stagepipe.sources.dataset", "stagepipe.sources.DatasetSource"})
_NOT_ONE_BY_ONE: Final = ("batch_size", "batch_sampler", "shards")
"""Arguments that make an item of the source something else than one index."""
_FETCH: Final = "stagepipe.stages.Fetch"
_BATCH: Final = "stagepipe.stages.Batch"
CHUNK_WINDOW_ITEMS: Final = 2048
"""Small items in flight where they travel in chunks: some chunks for each worker. The memory that they take is bounded
by `SMALL_ITEM_BUDGET_BYTES` in `admission`."""


def mark_chunks(processes: tuple[ProcessPlan, ...], hops: tuple[HopPlan, ...]) -> tuple[ProcessPlan, ...]:
    """Return the processes, with `sends_chunks` where the first two can."""
    if len(processes) < 3 or not _can_send_chunks(processes, hops):  # noqa: PLR2004 - indices, readers, Batch
        return processes
    size = processes[2].first_stage.target.arguments.get("size")
    chunk_keys: dict[str, Any] = {"sends_chunks": True, "chunk_batch_size": size if isinstance(size, int) else 0}
    return (*(replace(process, **chunk_keys) for process in processes[:2]), *processes[2:])


def _can_send_chunks(processes: tuple[ProcessPlan, ...], hops: tuple[HopPlan, ...]) -> bool:
    source, reader, batch = processes[:3]
    return (
        len(source.stages) == 1
        and _get_path(source.first_stage) in _DATASET_SOURCES
        and all(source.first_stage.target.arguments.get(name) is None for name in _NOT_ONE_BY_ONE)
        and _get_path(reader.first_stage) == _FETCH
        and not any(stage.stateful or stage.batch is not None for stage in reader.stages)
        and _get_path(batch.first_stage) == _BATCH
        and batch.first_stage.field is None
        and batch.first_stage.as_ is None
        and all(hop.mode != "pipe" for hop in hops[:2])  # a chunk may exceed a packet
    )


def _get_path(stage: StagePlan) -> str:
    """Return the import path of a stage's target, for a class too; empty for another object."""
    uses: Any = stage.target.uses
    if isinstance(uses, type):
        return get_class_path(uses)
    return uses.replace(":", ".") if isinstance(uses, str) else ""
