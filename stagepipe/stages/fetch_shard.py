"""`FetchShard`: reads the shards of an iterable dataset. Runs in the workers of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from stagepipe.core import (
    BatchIterator,
    WorkerIdentity,
    build_dataset,
    call_worker_init_fn,
    context,
    is_stream,
    show_worker_info,
)
from stagepipe.stages.fetch import choose_collate


class FetchShard:
    """Iterate over an iterable dataset once for each of `shards` shards, and yield the samples.

    While shard k is read, `torch.utils.data.get_worker_info()` answers `id=k` and `num_workers=shards`. So a dataset
    that splits itself between the workers of a DataLoader splits itself into the same parts with any number of workers.
    Without torch, `stagepipe.context().item[0]` is k.

    Args:
        dataset: the dataset, or in a config the path of its class or of a function that returns it, such as
            `my_data.Digits`.
        shards: the number of shards. The items of the source are 0 ... `shards` - 1.
        batch_size: collate the samples of each shard in lists of this length. None: each sample is an item.
        drop_last: drop a shard's last list if it is shorter.
        collate_fn: called with a list of samples. Default: as `stagepipe.stages.Batch` does.
        worker_init_fn: called once in each worker with its number.

    Raises TypeError for a map-style dataset, which has indices to split.
    """

    deferred_arguments: ClassVar = frozenset({"dataset"})

    def __init__(
        self,
        dataset: Any,
        shards: int,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
    ) -> None:
        """Build the dataset."""
        self._dataset = build_dataset(dataset)
        if not is_stream(self._dataset):
            class_name = type(self._dataset).__qualname__
            raise TypeError(
                f"dataset: {class_name} is map-style, and its indices are split between workers anyway; remove `shards`"
            )
        self._shard_count = shards
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._collate_fn = choose_collate(collate_fn)
        call_worker_init_fn(worker_init_fn, self._dataset)

    def __call__(self, shard: int) -> Iterator[Any]:
        """Yield the samples or batches of one shard."""
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(context().epoch)
        samples = _ShardIterator(self._dataset, WorkerIdentity(shard, self._shard_count, context().seed))
        if self._batch_size is None:
            yield from samples
        else:
            for batch in BatchIterator(samples, self._batch_size, drop_last=self._drop_last):
                yield self._collate_fn(batch)


class _ShardIterator(Iterator[Any]):
    """The samples of one shard. Only while the dataset runs, `get_worker_info()` describes the shard."""

    def __init__(self, dataset: Any, identity: WorkerIdentity) -> None:
        self._dataset = dataset
        self._identity = identity
        with show_worker_info(identity, dataset):
            self._samples = iter(dataset)

    def __next__(self) -> Any:
        with show_worker_info(self._identity, self._dataset):
            return next(self._samples)
