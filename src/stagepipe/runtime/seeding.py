"""Seeding the global generators before each item, so that anybody's augmentations repeat. In workers and inline."""

from __future__ import annotations

import random
import sys


def seed_globals(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators with a 64-bit `seed`; those not imported are left alone.

    torch's default generator is seeded by itself (1 us): `torch.manual_seed` looks for every kind of accelerator
    (70 us). CUDA's are seeded where a stage has begun to use it.
    """
    random.seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(seed)
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None and cuda.is_initialized():
            cuda.manual_seed_all(seed)
