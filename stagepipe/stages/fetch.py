"""Reads datasets in the workers of a source: `Fetch` turns indices into samples, `FetchShard` reads whole shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

from stagepipe.core import (
    BatchIterator,
    WorkerIdentity,
    build_dataset,
    call_worker_init_fn,
    context,
    is_stream,
    set_worker_info,
    show_worker_info,
    stage_locals,
)
from stagepipe.stages.collating import make_column

_OWN_PACKAGE: Final = __name__.partition(".")[0]


class Fetch:
    """Call a map-style dataset's `__getitem__` with each index. Each worker builds its own copy of the dataset once.

    With `batched` (the source has a `batch_size` or a `batch_sampler`) the samples of a list of indices are collated
    into one item: by `collate_fn`, or as `stagepipe.stages.Batch` does, in outgoing shared memory. If the dataset has
    `__getitems__`, one call fetches all of them. The source reads an iterable dataset itself; its samples are passed
    on unchanged, or collated with `batched`.

    Args:
        dataset: the dataset, or in a config the path of its class or of a function that returns it, such as
            `my_data.Digits`.
        batched: whether items are lists of indices that become one batch.
        takes_lists: whether a call takes a list of items, because the stage has a `batch`. If False, a list is one
            index from a sampler: `dataset[[0, 1]]`.
        collate_fn: called with a list of samples, like the `collate_fn` of a DataLoader.
        worker_init_fn: called once in each worker with its number. Inside it, and in the dataset, torch's
            `get_worker_info()` describes the worker.

    >>> Fetch(["a", "b", "c"])(2)
    'c'
    >>> Fetch([10, 20, 30], batched=True)([2, 0])
    array([30, 10])

    Raises the errors of the dataset, and ValueError if the samples of a batch differ in structure, shape or dtype.
    """

    deferred_arguments: ClassVar = frozenset({"dataset"})

    def __init__(
        self,
        dataset: Any,
        *,
        batched: bool = False,
        takes_lists: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
    ) -> None:
        """Build the dataset."""
        built_dataset = build_dataset(dataset)
        self._dataset: Any = None if is_stream(built_dataset) else built_dataset
        self.draws_nothing = _draws_nothing(built_dataset)
        """Whether the samples do not depend on the seeds of their items."""
        self._is_batched = batched
        self._takes_lists = takes_lists
        self._collate_fn = choose_collate(collate_fn)
        identity = stage_locals.worker_identity
        if self._dataset is not None and identity is not None:
            call_worker_init_fn(worker_init_fn, self._dataset)
            set_worker_info(identity, self._dataset)

    def __call__(self, index: Any) -> Any:
        """Return the sample of an index, the batch of a list of indices, or the unchanged sample of a stream."""
        if self._is_batched:
            return self._collate_fn(index if self._dataset is None else self._fetch_samples(index))
        if self._dataset is None:
            return index
        return self._fetch_samples(index) if self._takes_lists else self._dataset[index]

    @property
    def fetch_together(self) -> Callable[[list[Any]], list[Any]] | None:
        """The dataset's `__getitems__`, which takes a list of indices. None if it has none, or if items are lists."""
        if self._is_batched or self._takes_lists:
            return None
        return getattr(self._dataset, "__getitems__", None)

    def _fetch_samples(self, indices: list[Any]) -> list[Any]:
        get_items = getattr(self._dataset, "__getitems__", None)
        return list(get_items(indices)) if get_items else [self._fetch_sample(index) for index in indices]

    def _fetch_sample(self, index: Any) -> Any:
        """Return a sample of a list, whose error would only name the list."""
        try:
            return self._dataset[index]
        except Exception as error:
            error.add_note(f"at index {index!r} of the dataset")
            raise


def _draws_nothing(dataset: Any) -> bool:
    """Whether a dataset is one of stagepipe's own classes, not a subclass, and runs no code of the user."""
    cls = type(dataset)
    return getattr(cls, "draws_nothing", False) and cls.__module__.partition(".")[0] == _OWN_PACKAGE


def collate_samples(samples: Sequence[Any]) -> Any:
    """Collate samples into one item with a new first axis of length `len(samples)`, as `stagepipe.stages.Batch` does.

    >>> collate_samples([{"x": 1}, {"x": 2}])
    {'x': array([1, 2])}

    Raises ValueError for an empty list, and for samples that differ in structure, shape or dtype.
    """
    if not samples:
        raise ValueError("dataset: `batch_sampler` yielded an empty list of indices; yield lists of at least one index")
    column = make_column(samples[0], len(samples))
    for row, sample in enumerate(samples):
        column.put(row, sample)
    return column.take(len(samples))


def choose_collate(collate_fn: Callable[[list[Any]], Any] | None) -> Callable[[list[Any]], Any]:
    """Return `collate_fn`, or `collate_samples` for None. Raises TypeError for an object that cannot be called."""
    if collate_fn is None:
        return collate_samples
    if not callable(collate_fn):
        class_name = type(collate_fn).__qualname__
        raise TypeError(f"dataset: `collate_fn` is a {class_name}, which cannot be called; name a function")
    return collate_fn


class FetchShard:
    """Iterate over an iterable dataset once for each of `shards` shards, and yield the samples.

    While shard k is read, `torch.utils.data.get_worker_info()` returns `id=k` and `num_workers=shards`. So a dataset
    that splits itself between the workers of a DataLoader splits itself into the same parts with any number of workers.
    Without torch, `stagepipe.context().item[0]` is k.

    Args:
        dataset: the dataset, or in a config the path of its class or of a function that returns it, such as
            `my_data.Digits`.
        shards: the number of shards. The items of the source are 0 ... `shards` - 1.
        batch_size: collate lists of this many samples of a shard. None: each sample is an item.
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
    """The samples of one shard. `get_worker_info()` describes the shard only while the dataset runs."""

    def __init__(self, dataset: Any, identity: WorkerIdentity) -> None:
        self._dataset = dataset
        self._identity = identity
        with show_worker_info(identity, dataset):
            self._samples = iter(dataset)

    def __next__(self) -> Any:
        with show_worker_info(self._identity, self._dataset):
            return next(self._samples)
