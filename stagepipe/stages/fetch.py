"""`Fetch`: turns the indices of `stagepipe.sources.dataset` into samples. The stage `dataset`; runs in its workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from stagepipe.core import build_dataset, is_stream
from stagepipe.stages.collate import make_column


class Fetch:
    """Call a map-style dataset's `__getitem__` with each index. Each worker builds its own copy of the dataset once.

    If the dataset has `__getitems__`, a list of indices is fetched with one call. With `batched` (the source has a
    `batch_sampler`) the samples of a list are collated into one item: by `collate_fn`, or as `stagepipe.stages.Batch`
    does, in outgoing shared memory. The source reads an iterable dataset itself; its samples are passed on.

    Args:
        dataset: the dataset, or in a config the path of its class or of a function that returns it.
        batched: whether items are lists of indices that become one batch.
        collate_fn: called with a list of samples, as a DataLoader's is.

    >>> Fetch(["a", "b", "c"])(2)
    'c'
    >>> Fetch([10, 20, 30], batched=True)([2, 0])
    array([30, 10])

    Raises what the dataset raises, and ValueError if the samples of a batch differ in structure, shape or dtype.
    """

    deferred_arguments: ClassVar = frozenset({"dataset"})

    def __init__(
        self, dataset: Any, *, batched: bool = False, collate_fn: Callable[[list[Any]], Any] | None = None
    ) -> None:
        """Build the dataset."""
        built_dataset = build_dataset(dataset)
        self._dataset: Any = None if is_stream(built_dataset) else built_dataset
        self._is_batched = batched
        self._collate_fn = collate_fn or collate_samples

    def __call__(self, index: Any) -> Any:
        """Return the sample of an index, the batch of a list of indices, or the unchanged sample of a stream."""
        if self._dataset is None:
            return index
        if self._is_batched:
            return self._collate_fn(self._fetch_samples(index))
        # Without `batched`, a list comes from the stage's own `batch` key, which expects one result per index.
        return self._fetch_samples(index) if type(index) is list else self._dataset[index]

    def _fetch_samples(self, indices: list[Any]) -> list[Any]:
        get_items = getattr(self._dataset, "__getitems__", None)
        return list(get_items(indices)) if get_items else [self._dataset[index] for index in indices]


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
