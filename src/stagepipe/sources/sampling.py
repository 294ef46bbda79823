"""The order that a sampler gives, drawn once an epoch from (seed, epoch). A sampler is torch's, or any iterable."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Final

import numpy as np

from stagepipe.core import seed_of

_INSIDE: Final = ("sampler", "batch_sampler")  # where torch's BatchSampler and its likes keep the one that they wrap


class SampledOrder:
    """What a sampler yields in an epoch, as a list: so that any place of it can be read without replaying.

    Before it is drawn, `set_epoch` is called where the sampler has it, and the generators that it keeps (torch's,
    NumPy's, Python's) are seeded from (seed, epoch). The global ones are seeded by whoever calls `begin`.

    >>> order = SampledOrder(lambda: [2, 0])
    >>> len(order), order[0]
    (2, 2)

    Raises TypeError for what cannot be iterated.
    """

    def __init__(self, build: Callable[[], Any], *, batched: bool = False) -> None:
        """`build` gives the sampler; once, but for one that can be read only once. `batched`: it yields lists."""
        self._build, self.batched = build, batched
        self._sampler = build()
        self._is_spent = False
        if not isinstance(self._sampler, Iterable):
            name = "batch_sampler" if batched else "sampler"
            message = f"dataset: `{name}` is {type(self._sampler).__qualname__}, which has no `__iter__`; give it one"
            raise TypeError(message)
        self._order: list[Any] = []
        self._drawn: tuple[int, int] | None = None

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order, unless it is the one that is there."""
        if self._drawn == (epoch, seed):
            return
        if self._is_spent:
            self._sampler = self._build()
        _prepare(self._sampler, epoch, seed_of(seed, epoch, "sampler", ()))
        self._order = [list(batch) for batch in self._sampler] if self.batched else list(self._sampler)
        self._is_spent = isinstance(self._sampler, Iterator)
        self._drawn = (epoch, seed)

    def __len__(self) -> int:
        if self._drawn is None and isinstance(self._sampler, Sized):
            return len(self._sampler)
        return len(self._now())

    def __getitem__(self, at: int) -> Any:
        return self._now()[at]

    def _now(self) -> list[Any]:
        """Before an epoch has begun it is drawn by generators that nobody has seeded, so `begin` draws it again."""
        if self._drawn is None and not self._order:
            self.begin(0, 0)
            self._drawn = None
        return self._order


def _prepare(sampler: Any, epoch: int, seed: int) -> None:
    """Tell a sampler, and those that it wraps, the epoch, and seed what they draw from."""
    set_epoch = getattr(sampler, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    kept = getattr(sampler, "__dict__", {})
    for value in kept.values():
        _seed(value, seed)
    for name in _INSIDE:
        if kept.get(name) is not None:
            _prepare(kept[name], epoch, seed)


def _seed(generator: Any, seed: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
