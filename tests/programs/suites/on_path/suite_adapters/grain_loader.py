"""`DataLoader`: Grain's, on a pipeline: a source of records in the sampler's order, and a stage an operation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from grain._src.core import transforms
from grain._src.python import operations as old_operations
from grain._src.python import options as grain_options

import stagepipe
from suite_adapters.faults import spoil
from suite_adapters.groups import Groups
from suite_adapters.uses import count_use


class _Shard:
    """The positions of a shard in the sampler's order; positions, not the records that a sampler counts as its own."""

    def __init__(self, sampler: Any, shard: Any) -> None:
        count, self._first, self._step = len(sampler), shard.shard_index, shard.shard_count
        self._count = count // self._step * self._step if shard.drop_remainder else count
        self._sampler = sampler

    def __len__(self) -> int:
        return len(range(self._first, self._count, self._step))

    def __iter__(self) -> Iterator[Any]:
        for position in range(self._first, self._count, self._step):
            yield self._sampler[position].record_key


class _RandomMap:
    def __init__(self, operation: Any) -> None:
        self._operation = operation

    def __call__(self, item: Any) -> Any:
        return self._operation.random_map(item, stagepipe.context().rng)


def _add(builder: Any, operation: Any) -> Any:
    """Add a stage for an operation. They run in the workers that read, as in Grain's."""
    match operation:
        case transforms.Map():
            added = builder.map(operation.map, fuse=True)
        case transforms.RandomMap():
            added = builder.map(_RandomMap(operation), fuse=True)
        case transforms.Filter():
            added = builder.filter(operation.filter, fuse=True)
        case transforms.FlatMap():
            added = builder.flat_map(operation.flat_map, fuse=True)
        case old_operations.MapOperation():
            added = builder.map(operation.map_function, fuse=True)
        case old_operations.FilterOperation():
            added = builder.filter(operation.condition_function, fuse=True)
        case _ if operation.batch_fn is None:
            added = builder.batch(operation.batch_size, drop_last=operation.drop_remainder)
        case _:
            arguments = {"drop_last": operation.drop_remainder, "function": operation.batch_fn}
            added = builder.map(stagepipe.defer(Groups, size=operation.batch_size, **arguments))
    return added


class DataLoader:
    """A loader of a pipeline, with the arguments of Grain's DataLoader."""

    def __init__(
        self,
        *,
        data_source: Any,
        sampler: Any,
        operations: Sequence[Any] = (),
        worker_count: int | None = 0,
        worker_buffer_size: int = 1,
        shard_options: Any = None,
        read_options: grain_options.ReadOptions | None = None,
        enable_profiling: bool = False,
    ) -> None:
        count_use("made")
        self._worker_count = worker_count or 0
        shard = _Shard(sampler, shard_options or sampler._shard_options)
        workers = {"workers": worker_count} if worker_count else {}
        builder = stagepipe.from_dataset(data_source, sampler=shard, **workers)
        for operation in operations:
            builder = _add(builder, operation)
        seed = getattr(sampler, "_seed", None)
        module = "grain._src.python.data_loader_test"
        preload = [module] if module in sys.modules else []
        options = {"attach": False, "preload": preload, **({} if seed is None else {"seed": seed})}
        self._builder = builder.with_options(**options)

    def __iter__(self) -> _Iterator:
        """Return a new iterator with a pipeline of its own, as Grain does."""
        count_use("processes" if self._worker_count else "inline")
        return _Iterator(self._builder.open(inline=not self._worker_count))


class _Iterator:
    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._items: Iterator[Any] | None = None

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        if self._items is None:
            self._items = spoil(iter(self._pipeline))
        return next(self._items)

    def start_prefetch(self) -> None:
        self._pipeline.start()

    def get_state(self) -> bytes:
        return json.dumps(self._pipeline.state_dict()).encode()

    def set_state(self, state: bytes) -> None:
        self._pipeline.load_state_dict(json.loads(state))
        self._items = None
