"""`Fetch`: from the indices that `stagepipe.sources.dataset` sends to samples. The stage `dataset`; in its workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from stagepipe.core.datasets import dataset_of, is_stream
from stagepipe.stages.column import column_for


class Fetch:
    """Call a map-style dataset's `__getitem__` with each index; each worker has its own copy, built once.

    A list of indices is fetched by `__getitems__` where the dataset has it. With `batched` (the source has a
    `batch_sampler`) its samples are collated into one item: by `collate_fn`, or as `stagepipe.stages.Batch` does, in
    the outgoing shared memory. Samples of an iterable dataset, which the source has read, are passed on.

    >>> Fetch(["a", "b", "c"])(2)
    'c'
    >>> Fetch([10, 20, 30], batched=True)([2, 0])
    array([30, 10])

    Raises what the dataset raises; ValueError where samples of one batch differ in structure, shape or dtype.
    """

    built_late: ClassVar = frozenset({"dataset"})

    def __init__(
        self, dataset: Any, *, batched: bool = False, collate_fn: Callable[[list[Any]], Any] | None = None
    ) -> None:
        """`collate_fn` is called with a list of samples, as a DataLoader's is."""
        itself = dataset_of(dataset)
        self._dataset: Any = None if is_stream(itself) else itself
        self._batched, self._collate = batched, collate_fn or stacked

    def __call__(self, index: Any) -> Any:
        """The sample of an index, the batch of a list of them, or a sample that is one already."""
        if self._dataset is None:
            return index
        if self._batched:
            return self._collate(self._samples(index))
        # A list without `batched` is of the stage's own `batch`: as many results go back.
        return self._samples(index) if type(index) is list else self._dataset[index]

    def _samples(self, indices: list[Any]) -> list[Any]:
        together = getattr(self._dataset, "__getitems__", None)
        return list(together(indices)) if together else [self._dataset[index] for index in indices]


def stacked(samples: Sequence[Any]) -> Any:
    """Samples as one item with a first axis of their number, as `stagepipe.stages.Batch` makes it.

    >>> stacked([{"x": 1}, {"x": 2}])
    {'x': array([1, 2])}

    Raises ValueError for none, and for samples that differ.
    """
    if not samples:
        raise ValueError("dataset: an empty list of indices; let `batch_sampler` yield lists of at least one")
    column = column_for(samples[0], len(samples))
    for row, sample in enumerate(samples):
        column.put(row, sample)
    return column.take(len(samples))
