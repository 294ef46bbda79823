"""Sources and order points that draw random numbers, as users write them. Imported by worker processes."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

import stagepipe
from tests.support.order_points import Pairs


def draw() -> tuple[float, ...]:
    """Draw from Python, NumPy and the context."""
    return (random.random(), np.random.random(), stagepipe.context().rng.random())  # noqa: NPY002 - as users do


def stream(count: int) -> Iterator[Any]:
    """What it has drawn before goes into each item; so does a generator that it keeps."""
    kept = stagepipe.context().rng
    total = random.random()
    for number in range(count):
        total += random.random()
        yield number, total, kept.random(), *draw()


class Samples:
    """A stream whose iterator draws when it is made."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        shift = draw()
        return ((number, shift, *draw()) for number in range(self.count))


def noisy(item: Any) -> Any:
    return (item, *draw())


def noisy_parts(item: Any) -> Iterator[Any]:
    """Draw before, between and after the parts."""
    total = random.random()
    for _ in range(2):
        total += random.random()
        yield (item, total, *draw())


class Counting:
    """Keeps a count from item to item: its output depends on which worker gets which items."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, item: Any) -> Any:
        self.count += 1
        return item, self.count


def unseeded(item: Any) -> Any:
    return item, np.random.default_rng().random()


class NoisyPairs(Pairs):
    """An order point that draws in both of its methods."""

    def add(self, value: Any, samples: int) -> bool:
        return super().add((value, *draw()), samples)

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        return [((value, rng.random(), *draw()), samples) for value, samples in super().flush(rng)]


class ShuffledByContext:
    """An indexed source whose order is drawn from the context: all ranks must draw the same."""

    def __init__(self, count: int) -> None:
        self.order = np.arange(count)

    def begin(self, epoch: int, seed: int) -> None:
        self.order = stagepipe.context().rng.permutation(len(self.order))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> int:
        return int(self.order[index])
