"""Random generators that a transform keeps for itself, which seeding Python's, NumPy's and torch's does not reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def own_generators(function: Any) -> Callable[[int], None] | None:
    """How to seed the generators that `function` keeps for itself, or None where it keeps none.

    Albumentations (2.0 and later) draws from generators of its own, which the operating system seeds when a transform
    is built; `set_random_seed`, which its `Compose` and every transform have, seeds them. Called before each item with
    the item's seed, the same item gets the same augmentation in any worker and after a resume.

    >>> own_generators(print) is None
    True
    """
    seed = getattr(function, "set_random_seed", None)
    return seed if callable(seed) else None
