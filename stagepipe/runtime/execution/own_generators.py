"""Random generators that a transform keeps for itself: seeding Python, NumPy and torch does not reach them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def find_seed_method(function: Any) -> Callable[[int], None] | None:
    """Return the method that seeds the generators of `function`, or None where it has none.

    Albumentations (2.0 and later) draws from its own generators, which the operating system seeds when a transform is
    built. `set_random_seed`, a method of its `Compose` and of every transform, seeds them. Called before each item with
    the item's seed, it gives the same item the same augmentation in any worker and after a resume.

    >>> find_seed_method(print) is None
    True
    """
    seed = getattr(function, "set_random_seed", None)
    return seed if callable(seed) else None
