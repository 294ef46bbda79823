"""The order that a sampler draws, once per epoch, from (seed, epoch). Runs in the source's process.

A sampler is one of torch's, or any iterable.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import numpy as np

from stagepipe.core import WRAPPED_SAMPLER_ATTRIBUTES, derive_seed


class SamplerOrder:
    """What a sampler yields in an epoch, as a list, so that any position can be read without replaying.

    Before the order is drawn, the sampler's `set_epoch` is called if it has one, and the generators that it holds
    (torch's, NumPy's, Python's) are seeded from (seed, epoch). The caller of `begin` seeds the global generators.

    >>> order = SamplerOrder(lambda: [2, 0])
    >>> len(order), order[0]
    (2, 2)

    Raises TypeError for a sampler that is not iterable.
    """

    def __init__(self, build_sampler: Callable[[], Any], *, batched: bool = False) -> None:
        """`build_sampler` is called once, or once per epoch for an iterator. `batched`: the sampler yields lists."""
        self._build_sampler = build_sampler
        self.is_batched = batched
        self._sampler = build_sampler()
        self._is_exhausted = False
        if not isinstance(self._sampler, Iterable):
            name = "batch_sampler" if batched else "sampler"
            message = (
                f"dataset: `{name}` is {type(self._sampler).__qualname__}, which has no `__iter__`; give an iterable"
            )
            raise TypeError(message)
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
        """Return the order. Before the first `begin` its generators are not seeded, so `begin` draws it again."""
        if self._drawn_epoch_and_seed is None and not self._order:
            self.begin(0, 0)
            self._drawn_epoch_and_seed = None
        return self._order


def _prepare_sampler(sampler: Any, epoch: int, seed: int) -> None:
    """Set the epoch of a sampler and of those that it wraps, and seed their generators."""
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
