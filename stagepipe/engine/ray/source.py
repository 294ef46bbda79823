"""The read tasks: the source as a Ray Data datasource. Each task reads a range of items, or the whole stream.

The caller's process makes the tasks, and Ray workers run them. Import it only with Ray: it subclasses Ray's classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import ray
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from stagepipe.core import RunError
from stagepipe.engine.ray.workers import SourceOperator, make_error_block

ItemRange = tuple[int, int | None]
"""The first item of a read task, and the item after its last; None means up to the end of the stream."""

_operator_by_key: dict[str, SourceOperator] = {}
"""The source of this process's last read task. Building it again for each task could take long."""


class ItemSource(Datasource):  # type: ignore[misc]  # ray's classes have no types here
    """The source of a pipeline. `packed` refers to its operator in the object store."""

    def __init__(self, packed: Any, key: str, ranges: list[ItemRange]) -> None:
        """`key` names the epoch of a run. Each of `ranges` becomes a task."""
        super().__init__()
        self._packed = packed
        self._key = key
        self._ranges = ranges

    def get_name(self) -> str:
        """Return the name that Ray's logs show."""
        return "source"

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: the size is unknown before the items are read."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return a task for each range, ignoring the number that Ray prefers."""
        del parallelism, data_context
        return [
            ReadTask(
                partial(_read, self._packed, self._key, first_item, end_item),
                BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None),
                per_task_row_limit=per_task_row_limit,
            )
            for first_item, end_item in self._ranges
        ]


def _read(packed: Any, key: str, first_item: int, end_item: int | None) -> Iterator[Any]:
    """Yield the blocks of a range."""
    operator = _operator_by_key.get(key)
    if operator is None:
        try:
            operator = SourceOperator(ray.get(packed))
        except RunError as error:
            yield make_error_block(error)
            return
        _operator_by_key.clear()
        _operator_by_key[key] = operator
    yield from operator.read(first_item, end_item)
