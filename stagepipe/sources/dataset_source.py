"""`DatasetSource`: a map-style or iterable dataset as a source, and the interface of streams.

The source's process sends indices, or with a batch size lists of them; the workers of the source turn them into
samples. `SeededStream` is the base of stagepipe's own streams, whose items depend on seed and epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from stagepipe.core import (
    BatchIterator,
    PassedStream,
    SourceFiles,
    SourceIdentity,
    StatefulBatchIterator,
    StatefulPassedStream,
    WorkerIdentity,
    build_dataset,
    build_deferred,
    call_worker_init_fn,
    find_iterator,
    is_stream,
    saves_state,
    set_worker_info,
)
from stagepipe.sources.order import BatchedOrder, EpochOrder, SamplerOrder, ShuffledOrder
from stagepipe.sources.record_source import RecordSource, ShuffleMode

FILES_ATTRIBUTE: Final = "_stagepipe_files"
"""The attribute in which a source stores the `SourceFiles` of a stream whose class belongs to another library."""


class SeededStream(ABC):
    """A stream that gets seed and epoch before it is read."""

    @abstractmethod
    def begin(self, epoch: int, seed: int) -> None:
        """Start an epoch: the next iteration reads its items, from the start."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def describe_files(self) -> SourceFiles | None:
        """Return the identity of the files, for the states of a run; None if unknown."""
        return None


class WorkerStream(PassedStream):
    """A stream in a worker of a DataLoader. It has no `set_epoch`, because the training loop sets the epoch.

    `get_worker_info()` describes the worker, and `worker_init_fn` is called before the first read of the stream.
    """

    def __init__(
        self,
        stream: Any,
        identity: WorkerIdentity | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
    ) -> None:
        super().__init__(stream)
        self._identity = identity
        self._worker_init_fn = worker_init_fn

    def __iter__(self) -> Iterator[Any]:
        if self._identity is not None:
            set_worker_info(self._identity, self.stream)
            call, self._worker_init_fn = self._worker_init_fn, None
            if call is not None:
                call(self._identity.worker)
        return iter(self.stream)


class StatefulWorkerStream(StatefulPassedStream, WorkerStream):
    """A WorkerStream that saves and loads its state."""


def begin_stream(stream: Any, epoch: int, seed: int) -> None:
    """Start an epoch of any stream. Call its `set_epoch` if it has one, as a training loop does."""
    if isinstance(stream, SeededStream):
        stream.begin(epoch, seed)
        return
    set_epoch = getattr(stream, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def describe_stream_files(stream: Any) -> SourceFiles | None:
    """Return the identity of a stream's files; None if unknown."""
    files: SourceFiles | None = getattr(stream, FILES_ATTRIBUTE, None)
    if files is None and isinstance(stream, SeededStream):
        return stream.describe_files()
    return files


_ROWS_BY_KIND: Final = {
    "pandas.DataFrame": 'dataset.to_dict("records")',
    "pyarrow.Table": "dataset.to_pylist()",
    "pyarrow.RecordBatch": "dataset.to_pylist()",
}
_LABELED_KINDS: Final = frozenset({"pandas.Series", "zarr.Group"})
_MAX_NAMES: Final = 5
"""Maximum number of names in a message."""


class DatasetSource:
    """Yield the indices of a map-style dataset in the epoch's order, or the samples of an iterable dataset.

    In YAML it is `uses: stagepipe.sources.dataset`. There the source's workers (`stagepipe.stages.Fetch`) call
    `__getitem__`, and take the arguments `with` and `collate_fn`.

    Args:
        dataset: a map-style dataset (`__getitem__` and `__len__`), an iterable one (`IterableDataset`, or only
            `__iter__`), or in a config the path of its class or of a function that returns one, such as
            `my_data.Digits`.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. A record source may
            have its own `shuffle` instead, including `"blocks"`.
        sampler: an iterable of indices, instead of `shuffle`.
        batch_sampler: an iterable of lists of indices, instead of `shuffle`, `sampler` and `batch_size`.
        batch_size: the number of indices or samples per item. None: one.
        drop_last: drop the last list if it is shorter than `batch_size`.
        worker_init_fn: called with 0 before an iterable dataset is read. For a map-style dataset, the source's workers
            call it.
        shards: the number of separate iterations over an iterable dataset. Items are then shard numbers; the source's
            workers (`stagepipe.stages.FetchShard`) read the shards.

    Items are indices (`int`, or the sampler's values), or lists of them with `batch_size` or `batch_sampler`. An
    iterable dataset is read from its start in the source's process, where `get_worker_info()` is None; its `set_epoch`,
    if any, is called first.

    >>> source = DatasetSource(["a", "b", "c"], shuffle=True)
    >>> source.begin(epoch=0, seed=17)
    >>> sorted(source)
    [0, 1, 2]
    >>> list(DatasetSource(["a", "b", "c"], batch_size=2))
    [[0, 1], [2]]

    Raises ValueError for conflicting arguments, and TypeError for an invalid dataset or sampler.
    """

    deferred_arguments: ClassVar = frozenset({"dataset", "sampler", "batch_sampler"})

    def __new__(  # type: ignore[misc]
        cls,
        dataset: Any,
        *,
        shuffle: ShuffleMode = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        batch_size: int | None = None,
        drop_last: bool = False,
        worker_init_fn: Callable[[int], Any] | None = None,
        shards: int | None = None,
    ) -> DatasetIndices | DatasetSamples | range:
        """Return a source for the kind of dataset: an indexed one, or a stream."""
        order_arguments = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
        given_names = [name for name, value in order_arguments.items() if value is not None]
        _refuse_conflicts([*given_names, *(["batch_size"] if batch_size is not None else [])])
        for name in given_names:
            _refuse_iterator(find_iterator(order_arguments[name]), f"`{name}`")
        if shards is not None:
            return range(shards)
        built = build_dataset(dataset)
        if is_stream(built):
            _refuse_order_of_iterable(built, given_names)
            call_worker_init_fn(worker_init_fn, built)
            samples_class = StatefulDatasetSamples if saves_state(built) else DatasetSamples
            return samples_class(built, batch_size, drop_last=drop_last)
        order = _make_order(built, shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler)
        return DatasetIndices(
            built, order if batch_size is None else BatchedOrder(order, batch_size, drop_last=drop_last)
        )


def _make_order(built: Any, *, shuffle: ShuffleMode, sampler: Any, batch_sampler: Any) -> EpochOrder:
    if isinstance(built, RecordSource) and built.shuffle:
        given = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
        _refuse_conflicts([f"{built.label}.shuffle", *(name for name, value in given.items() if value is not None)])
        shuffle = built.shuffle
    if sampler is not None or batch_sampler is not None:
        is_batched = batch_sampler is not None
        chosen_sampler = batch_sampler if is_batched else sampler
        build_sampler = partial(build_deferred, chosen_sampler, dataset=built, data_source=built)
        return SamplerOrder(build_sampler, batched=is_batched)
    if not hasattr(type(built), "__len__"):
        class_name = type(built).__qualname__
        raise TypeError(f"dataset: {class_name} has `__getitem__` but no `__len__`; add `__len__`, or give a `sampler`")
    if isinstance(built, RecordSource):
        return built.make_order(shuffle)
    _refuse_named_columns(built)
    if shuffle == "blocks":
        raise ValueError(f"dataset: {type(built).__qualname__} has no blocks to shuffle; write `shuffle: true`")
    return ShuffledOrder(len(built), "dataset") if shuffle else range(len(built))


def _refuse_named_columns(dataset: Any) -> None:
    """Raise TypeError for a table or mapping whose indices are not rows: a DataFrame would yield its columns."""
    cls = type(dataset)
    kind = f"{cls.__module__.partition('.')[0]}.{cls.__name__}"
    if kind in _ROWS_BY_KIND:
        raise TypeError(
            f"dataset: an index of a {cls.__name__} is not a row; give the rows, `{_ROWS_BY_KIND[kind]}`, or use a "
            "source that reads the file"
        )
    if isinstance(dataset, Mapping):
        names = list(dataset)
    elif kind in _LABELED_KINDS:  # an index is looked up among the names, if they are numbers
        names = list(dataset.keys())
    else:
        return
    if not set(names).issuperset(range(len(names))):
        found = ", ".join(f"`{name}`" for name in names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
        raise TypeError(
            f"dataset: {cls.__name__} has the keys {found}, not the indices 0 to {len(names) - 1}; give one of its "
            f"values, such as `dataset[{names[0]!r}]`, or a `sampler` of keys"
        )


def _refuse_conflicts(given_names: list[str]) -> None:
    """Refuse two arguments that both define the order or the lists."""
    order_names = [name for name in given_names if name != "batch_size" or "batch_sampler" in given_names]
    if len(order_names) > 1:
        first, second = order_names[:2]
        raise ValueError(f"dataset: `{first}` and `{second}` exclude each other; remove one of them")


def _refuse_order_of_iterable(dataset: Any, given_names: list[str]) -> None:
    if given_names:
        name = given_names[0]
        raise ValueError(
            f"dataset: {type(dataset).__qualname__} is iterable, so it has no indices for `{name}` to order; remove "
            f"`{name}`, and to shuffle add a stage {{name: shuffle, uses: stagepipe.stages.Shuffle, with: "
            "{size: 1000}}"
        )


def _refuse_iterator(iterator: Iterator[Any] | None, name: str) -> None:
    """Refuse an iterator object, which would be empty in the second epoch."""
    if iterator is not None:
        class_name = type(iterator).__qualname__
        raise TypeError(
            f"dataset: {name} is an iterator ({class_name}), which can be read only once; give a list, or the class or "
            "function that creates it"
        )


_MAX_INDEX: Final = 1 << 63


class DatasetIndices:
    """A map-style dataset's indices, or lists of them, in the epoch's order. Any position can be read at no cost."""

    def __init__(self, dataset: Any, order: EpochOrder | BatchedOrder) -> None:
        """Hold the dataset without reading it, so that a stage in this process can share it."""
        self.dataset = dataset
        self._order = order

    @property
    def order(self) -> EpochOrder | BatchedOrder:
        """The epoch's order: indices, or lists of them."""
        return self._order

    def get_source_identity(self) -> SourceIdentity:
        """Return the number of records, and for a record source its files."""
        if isinstance(self.dataset, RecordSource):
            return self.dataset.get_source_identity()
        try:
            return SourceIdentity(len(self.dataset))
        except Exception:  # noqa: BLE001 - with a sampler, nothing else asks for the length
            return SourceIdentity()

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order."""
        if not isinstance(self._order, range):
            self._order.begin(epoch, seed)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Any:
        return self._order[index]

    def read_indices(self, numbers: Sequence[int]) -> Sequence[int] | None:
        """Return the indices of several items; None if one is not an `int` of 64 bits, and they must go one by one."""
        order = self._order
        if isinstance(order, BatchedOrder):
            return None
        if isinstance(order, range) and isinstance(numbers, range):
            return order[numbers.start : numbers.stop : numbers.step]
        indices: list[Any] = [order[number] for number in numbers]
        is_small = set(map(type, indices)) == {int} and -_MAX_INDEX <= min(indices) <= max(indices) < _MAX_INDEX
        return indices if is_small else None

    def count_samples(self, item: Any) -> int:
        """Return the number of samples of an item: the length of a list of indices, otherwise 1."""
        return len(item) if type(item) is list else 1


class DatasetSamples(PassedStream):
    """The samples of an iterable dataset, or lists of them with `batch_size`."""

    def __init__(self, dataset: Any, batch_size: int | None = None, *, drop_last: bool = False) -> None:
        """Raises TypeError for a dataset that is an iterator: it could be read only once."""
        _refuse_iterator(dataset if isinstance(dataset, Iterator) else None, "the dataset")
        super().__init__(dataset)
        self._batch_size = batch_size
        self._drop_last = drop_last

    def get_source_identity(self) -> SourceIdentity:
        """Return the files of a stream, if known; its items are not counted."""
        return SourceIdentity(None, describe_stream_files(self.stream))

    def begin(self, epoch: int, seed: int) -> None:
        """Call the dataset's `set_epoch`, as a training loop does."""
        begin_stream(self.stream, epoch, seed)

    def __iter__(self) -> Iterator[Any]:
        samples: Iterator[Any] = iter(self.stream)
        if self._batch_size is None:
            return samples
        iterator_class = StatefulBatchIterator if saves_state(samples) else BatchIterator
        return iterator_class(samples, self._batch_size, drop_last=self._drop_last)

    def __len__(self) -> int:
        """Return the number of items by the dataset's `__len__`. Raises TypeError if it has none."""
        count = len(self.stream)
        if self._batch_size is None:
            return count
        return count // self._batch_size if self._drop_last else -(-count // self._batch_size)

    def count_samples(self, item: Any) -> int:
        """Return the number of samples of an item."""
        return 1 if self._batch_size is None else len(item)


class StatefulDatasetSamples(StatefulPassedStream, DatasetSamples):
    """The samples of an iterable dataset that saves its state, so that a resume continues from there."""
