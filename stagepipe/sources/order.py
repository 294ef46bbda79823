"""The order of an epoch: indices, drawn once from (seed, epoch) in the source's process.

Because the whole order is drawn at once, a source can start at any position. The order of a mix depends on its parts
and is in `joined_order`.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import WRAPPED_SAMPLER_ATTRIBUTES, derive_seed


class SeededOrder(Protocol):
    """Indices of an epoch, drawn from (seed, epoch) by `begin`."""

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order, unless it is the current one. It depends only on epoch and seed."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


EpochOrder = range | SeededOrder
"""The indices of an epoch."""


class ShuffledOrder:
    """The numbers 0 ... `count` - 1, in a different order in each epoch.

    >>> order = ShuffledOrder(3, "files")
    >>> order.begin(epoch=0, seed=17)
    >>> sorted(order[index] for index in range(3))
    [0, 1, 2]
    """

    def __init__(self, count: int, seed_name: str) -> None:
        """`seed_name` goes into the seed, so that two sources differ. Before `begin`, the order ascends."""
        self._count = count
        self._seed_name = seed_name
        self._order: Sequence[int] = range(count)
        self._drawn_epoch_and_seed: tuple[int, int] | None = None

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order, unless it is the current one. It depends only on epoch and seed."""
        if self._drawn_epoch_and_seed != (epoch, seed):
            order = list(range(self._count))
            random.Random(derive_seed(seed, epoch, self._seed_name, ())).shuffle(order)
            self._order = order
            self._drawn_epoch_and_seed = (epoch, seed)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return self._order[index]


class BlockShuffledOrder:
    """The numbers 0 ... `count` - 1, shuffled so that only a few blocks are read at a time.

    The blocks are shuffled, and each `blocks_together` consecutive blocks are mixed. A record therefore stays within
    the span of these blocks. Takes 8 bytes per record.

    >>> order = BlockShuffledOrder([0, 3], 5, "dataset", blocks_together=1)
    >>> order.begin(epoch=0, seed=17)
    >>> numbers = [order[index] for index in range(5)]
    >>> sorted(numbers), set(numbers[:2]) == {3, 4} or set(numbers[:3]) == {0, 1, 2}
    ([0, 1, 2, 3, 4], True)
    """

    def __init__(self, starts: Sequence[int], count: int, seed_name: str, *, blocks_together: int) -> None:
        """`starts` are the first numbers of the blocks, ascending from 0. Before `begin`, the order ascends."""
        self._bounds = np.append(np.asarray(starts, np.int64), count)
        self._seed_name = seed_name
        self._blocks_together = blocks_together
        self._order: NDArray[np.int64] | range = range(count)
        self._drawn_epoch_and_seed: tuple[int, int] | None = None

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order, unless it is the current one. It depends only on epoch and seed."""
        if self._drawn_epoch_and_seed == (epoch, seed):
            return
        drawn_seed = derive_seed(seed, epoch, self._seed_name, ()) & 0xFFFFFFFF
        # The draws of RandomState never change between versions of NumPy (NEP 19); a saved position relies on it.
        random = np.random.RandomState(drawn_seed)
        blocks = random.permutation(len(self._bounds) - 1)
        order = np.empty(len(self._order), np.int64)
        filled = 0
        for first in range(0, len(blocks), self._blocks_together):
            together = blocks[first : first + self._blocks_together]
            numbers = np.concatenate([np.arange(self._bounds[block], self._bounds[block + 1]) for block in together])
            random.shuffle(numbers)
            order[filled : filled + len(numbers)] = numbers
            filled += len(numbers)
        self._order = order
        self._drawn_epoch_and_seed = (epoch, seed)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> int:
        return int(self._order[index])


class BatchedOrder:
    """Lists of `batch_size` consecutive indices of an order. The last may be shorter; `drop_last` drops it.

    >>> list(BatchedOrder(range(5), 2))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, order: EpochOrder, batch_size: int, *, drop_last: bool = False) -> None:
        self._order = order
        self._batch_size = batch_size
        self._drop_last = drop_last

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order."""
        if not isinstance(self._order, range):
            self._order.begin(epoch, seed)

    def __len__(self) -> int:
        count = len(self._order)
        return count // self._batch_size if self._drop_last else -(-count // self._batch_size)

    def __getitem__(self, index: int) -> list[Any]:
        if index >= len(self):
            raise IndexError(index)
        order, first = self._order, index * self._batch_size
        last = min(first + self._batch_size, len(order))
        return list(order[first:last]) if isinstance(order, range) else [order[i] for i in range(first, last)]


class SamplerOrder:
    """The indices of a sampler in an epoch, as a list, so that any position can be read without replaying.

    Before the order is drawn, the sampler's `set_epoch` is called if it has one, and its generators
    (torch's, NumPy's, Python's) are seeded from (seed, epoch). The caller of `begin` seeds the global generators.

    >>> order = SamplerOrder(lambda: [2, 0])
    >>> len(order), order[0]
    (2, 2)

    Raises TypeError if the sampler is not iterable.
    """

    def __init__(self, build_sampler: Callable[[], Any], *, batched: bool = False) -> None:
        """`build_sampler` is called once, or once per epoch for an iterator. `batched`: the sampler yields lists."""
        self._build_sampler = build_sampler
        self.is_batched = batched
        self._sampler = build_sampler()
        self._is_exhausted = False
        if not isinstance(self._sampler, Iterable):
            name = "batch_sampler" if batched else "sampler"
            raise TypeError(
                f"dataset: `{name}` is {type(self._sampler).__qualname__}, which has no `__iter__`; give an iterable"
            )
        self._order: list[Any] = []
        self._drawn_epoch_and_seed: tuple[int, int] | None = None

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order, unless it is the current one."""
        if self._drawn_epoch_and_seed == (epoch, seed):
            return
        if self._is_exhausted:
            self._replace_exhausted_sampler()
        _prepare_sampler(self._sampler, epoch, derive_seed(seed, epoch, "sampler", ()))
        self._order = [list(batch) for batch in self._sampler] if self.is_batched else list(self._sampler)
        self._is_exhausted = isinstance(self._sampler, Iterator)
        self._drawn_epoch_and_seed = (epoch, seed)

    def _replace_exhausted_sampler(self) -> None:
        sampler = self._build_sampler()
        if sampler is self._sampler:
            class_name = type(sampler).__qualname__
            raise TypeError(
                f"dataset: the sampler is an iterator ({class_name}), which can be read only once; give a list, or a "
                "class or function that creates a new one for each epoch"
            )
        self._sampler = sampler

    def __len__(self) -> int:
        if self._drawn_epoch_and_seed is None and isinstance(self._sampler, Sized):
            return len(self._sampler)
        return len(self._get_order())

    def __getitem__(self, index: int) -> Any:
        return self._get_order()[index]

    def _get_order(self) -> list[Any]:
        """Return the order. Before the first `begin`, the generators are not seeded, so `begin` draws it again."""
        if self._drawn_epoch_and_seed is None and not self._order:
            self.begin(0, 0)
            self._drawn_epoch_and_seed = None
        return self._order


class DrawnOrder:
    """A sampler whose indices the caller's process draws, one epoch at a time.

    A copy in another process reads them from an anonymous file when its epoch begins. The file is replaced as a whole,
    so a reader gets either the old order or the new one.

    >>> order = DrawnOrder()
    >>> order.put([2, 0])
    >>> copied = pickle.loads(pickle.dumps(order))
    >>> order.put([1, 2])
    >>> list(order), list(copied)
    ([1, 2], [1, 2])
    """

    def __init__(self) -> None:
        self._indices: Sequence[Any] = ()
        self._file: int | None = None

    def put(self, indices: Sequence[Any]) -> None:
        """Replace the order."""
        self._indices = indices
        if self._file is not None:
            with os.fdopen(os.memfd_create("stagepipe-order"), "wb") as file:
                pickle.dump(indices, file, protocol=5)
                file.flush()
                os.dup2(file.fileno(), self._file, inheritable=False)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._indices)

    def __reduce__(self) -> Any:
        if self._file is None:
            self._file = os.memfd_create("stagepipe-order")
            weakref.finalize(self, os.close, self._file)
            self.put(self._indices)
        return _CopiedOrder, (f"/proc/{os.getpid()}/fd/{self._file}",)


class _CopiedOrder:
    """A `DrawnOrder` in another process."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Any]:
        with open(self._path, "rb") as file:  # noqa: PTH123 - a file of the kernel
            return iter(pickle.load(file))  # noqa: S301 - written by the caller's process


def _prepare_sampler(sampler: Any, epoch: int, seed: int) -> None:
    """Set the epoch of a sampler and of its wrapped samplers, and seed their generators."""
    set_epoch = getattr(sampler, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    attributes = getattr(sampler, "__dict__", {})
    for value in attributes.values():
        _seed_generator(value, seed)
    for name in WRAPPED_SAMPLER_ATTRIBUTES:
        if attributes.get(name) is not None:
            _prepare_sampler(attributes[name], epoch, seed)


def _seed_generator(generator: Any, seed: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
