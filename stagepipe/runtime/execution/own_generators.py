"""Seeds the random generators that a stage keeps for itself: seeding Python, NumPy and torch does not reach them.

In workers and inline.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from stagepipe.core import get_used_torch
from stagepipe.runtime.execution.reachable_objects import iter_reachable

_SEED_STEP: Final = 0x9E3779B97F4A7C15
"""The distance between the seeds of two generators: odd, so that the lower 32 bits differ too. From SplitMix64."""

_SEED_MASK: Final = 2**64 - 1

Seeder = Callable[[int], Any]
"""Seeds a generator with an integer of 64 bits."""


def find_own_generators(target: Any) -> Seeder | None:
    """Return a function that seeds every generator that `target` reaches, each differently; None where it has none.

    Found are `random.Random`, NumPy's `Generator`, `BitGenerator` and `RandomState`, `torch.Generator`, and objects
    with a method `set_random_seed`, such as the transforms of albumentations (2.0 and later). Called before each item
    with the item's seed, the function gives the same item the same draws in any worker and after a resume. Generators
    are numbered in the order in which they are found, so they must be found in the same order in each process.

    >>> find_own_generators(print) is None
    True
    >>> rng = random.Random()
    >>> seed = find_own_generators({"transform": [rng]})
    >>> seed(3), rng.random(), seed(3), rng.random()
    (None, 0.7248056413076998, None, 0.7248056413076998)
    """
    seeders = list(_iter_seeders(target))
    return partial(_seed_each, seeders) if seeders else None


def _seed_each(seeders: list[Seeder], seed: int) -> None:
    for seed_generator in seeders:
        seed = (seed + _SEED_STEP) & _SEED_MASK  # not the seed itself: the global generators have it
        seed_generator(seed)


def _iter_seeders(target: Any) -> Iterator[Seeder]:
    """Yield a seeder for each generator that `target` reaches, once."""
    seeded_ids = _list_global_generator_ids()
    for value in iter_reachable(target, is_seedable):
        generator = value.bit_generator if isinstance(value, np.random.Generator) else value
        if id(generator) not in seeded_ids:
            seeded_ids.add(id(generator))
            yield _make_seeder(generator)


def is_seedable(value: Any) -> bool:
    """Whether a value is a random generator, or an object that seeds the generators it has.

    >>> is_seedable(random.Random()), is_seedable(random.SystemRandom()), is_seedable(3)
    (True, False, False)
    """
    cls = type(value)
    if issubclass(cls, random.SystemRandom):  # draws from the operating system
        return False
    return issubclass(cls, _get_generator_types()) or any("set_random_seed" in base.__dict__ for base in cls.__mro__)


def _get_generator_types() -> tuple[type, ...]:
    """Return the types of generators. torch's is known only once torch is imported."""
    torch_type = getattr(get_used_torch(), "Generator", None)
    numpy_types = (np.random.Generator, np.random.BitGenerator, np.random.RandomState)
    return (random.Random, *numpy_types) if torch_type is None else (random.Random, *numpy_types, torch_type)


def _list_global_generator_ids() -> set[int]:
    """Return the ids of the generators that are seeded as global ones."""
    numpy_state = np.random.mtrand._rand  # noqa: SLF001 - it has no public name
    generators = [random._inst, numpy_state, np.random.__dict__["get_bit_generator"]()]  # noqa: SLF001
    generators.append(getattr(get_used_torch(), "default_generator", None))
    generators += getattr(get_used_torch("torch.cuda"), "default_generators", ())
    return set(map(id, generators))


def _make_seeder(generator: Any) -> Seeder:
    if isinstance(generator, np.random.BitGenerator):
        return partial(_seed_bit_generator, generator)
    if isinstance(generator, np.random.RandomState):
        bit_generator = generator._bit_generator  # noqa: SLF001 - it has no public name
        if not isinstance(bit_generator, np.random.MT19937):
            return partial(_seed_bit_generator, bit_generator)
        return lambda seed: generator.seed(seed & 0xFFFFFFFF)
    if isinstance(generator, random.Random):
        return generator.seed
    if hasattr(type(generator), "set_random_seed"):
        return lambda seed: generator.set_random_seed(seed & 0xFFFFFFFF)
    return generator.manual_seed  # type: ignore[no-any-return]  # torch's


def _seed_bit_generator(generator: np.random.BitGenerator, seed: int) -> None:
    generator.state = type(generator)(seed).state
