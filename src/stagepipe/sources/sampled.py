"""`dataset`: a dataset of torch or anybody as a source. Sends indices; the stage `dataset` makes samples of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

from stagepipe.core.datasets import dataset_of, is_stream
from stagepipe.core.late import build_late
from stagepipe.sources.order import ShuffledOrder
from stagepipe.sources.sampling import SampledOrder


class dataset:  # noqa: N801 - written `uses: stagepipe.sources.dataset` in YAML, where it reads as a noun
    """Indices of a map-style dataset in the epoch's order, or the samples of an iterable one.

    In a config the stage `dataset` (`stagepipe.stages.Fetch`) follows, which calls `__getitem__` and may have workers;
    `with` and `collate_fn` beside these arguments are its.

    Args:
        dataset: a map-style dataset (`__getitem__` and `__len__`), an iterable one (`IterableDataset`, or `__iter__`
            alone), or in a config the path of its class or of a function that returns one.
        shuffle: another order in each epoch, drawn from the pipeline's seed and the epoch.
        sampler: an iterable of indices, in place of `shuffle`.
        batch_sampler: an iterable of lists of indices, in place of `shuffle` and `sampler`.

    An iterable dataset is read from its start, in the source's process (`get_worker_info()` is None there);
    `set_epoch` is called where it has it.

    >>> source = dataset(["a", "b", "c"], shuffle=True)
    >>> source.begin(epoch=0, seed=17)
    >>> sorted(source)
    [0, 1, 2]

    Raises ValueError for arguments that exclude each other, TypeError for what is no dataset or no sampler.
    """

    built_late: ClassVar = frozenset({"dataset", "sampler", "batch_sampler"})

    def __new__(  # type: ignore[misc]
        cls, dataset: Any, *, shuffle: bool = False, sampler: Any = None, batch_sampler: Any = None
    ) -> Indices | Samples:
        """What is read is another thing for each kind of dataset: one can be asked for any place, one cannot."""
        given = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
        words = [name for name, value in given.items() if value is not None]
        if len(words) > 1:
            raise ValueError(f"dataset: `{words[0]}` and `{words[1]}` exclude each other; remove one of them")
        for name in words:
            _refuse_iterator(given[name], f"`{name}`")
        itself = dataset_of(dataset)
        if is_stream(itself):
            _refuse_order(itself, words)
            return Samples(itself)
        if sampler is not None or batch_sampler is not None:
            batched = batch_sampler is not None
            make = partial(build_late, batch_sampler if batched else sampler, dataset=itself, data_source=itself)
            return Indices(itself, SampledOrder(make, batched=batched))
        if not hasattr(type(itself), "__len__"):
            name = type(itself).__qualname__
            raise TypeError(f"dataset: {name} has `__getitem__` but no `__len__`; give it one, or give a `sampler`")
        return Indices(itself, ShuffledOrder(len(itself), "dataset") if shuffle else range(len(itself)))


def _refuse_order(itself: Any, words: list[str]) -> None:
    if words:
        raise ValueError(
            f"dataset: {type(itself).__qualname__} is iterable, so it has no indices for `{words[0]}` to order; remove "
            f"`{words[0]}`, and to shuffle add a stage {{name: shuffle, uses: stagepipe.stages.Shuffle, with: "
            "{size: 1000}}"
        )


def _refuse_iterator(value: Any, name: str) -> None:
    """One that was given as an object would be empty in the second epoch."""
    if isinstance(value, Iterator):
        kind = type(value).__qualname__
        raise TypeError(f"dataset: {name} is an iterator ({kind}), which can be read only once; name what makes it")


class Indices:
    """A map-style dataset's indices (or lists of them) in the epoch's order; a place of it is asked at no cost."""

    def __init__(self, itself: Any, order: range | ShuffledOrder | SampledOrder) -> None:
        """The dataset is only held: where the stage that reads it is in this process, it is the same copy."""
        self._dataset, self._order = itself, order

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order."""
        if not isinstance(self._order, range):
            self._order.begin(epoch, seed)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, at: int) -> Any:
        return self._order[at]

    def samples_of(self, item: Any) -> int:
        """How many samples an item stands for: a batch sampler's list for as many as it is long."""
        return len(item) if isinstance(self._order, SampledOrder) and self._order.batched else 1


class Samples:
    """An iterable dataset's samples."""

    def __init__(self, itself: Any) -> None:
        """A dataset that is an iterator is refused: it could be read only once."""
        _refuse_iterator(itself, "the dataset")
        self._dataset = itself

    def begin(self, epoch: int, seed: int) -> None:  # noqa: ARG002 - a source's method
        """Tell the dataset the epoch, as a training loop does."""
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset)
