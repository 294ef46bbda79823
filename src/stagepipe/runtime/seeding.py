"""Seeding the global generators before each item, so that anybody's augmentations repeat. In workers and inline."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import random
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy.random


def seed_globals(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators with a 64-bit `seed`.

    torch's default generator is seeded by itself (1 us): `torch.manual_seed` looks for every kind of accelerator
    (70 us). CUDA's are seeded where a stage has begun to use it.
    """
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the global one is what others' augmentations draw from
    torch = sys.modules.get("torch")
    if torch is None:
        _TorchIsComing.seed = seed
    elif hasattr(torch, "default_generator"):
        _seed_torch(torch, seed)


def _seed_torch(torch: Any, seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        cuda.manual_seed_all(seed)


class _TorchIsComing(importlib.abc.MetaPathFinder):
    """Seeds torch when a stage imports it in the middle of an item: that item's draws must repeat too."""

    seed = 0

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch as the others find it, with a loader that seeds it once it is there."""
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_seed(module: ModuleType) -> None:
                execute(module)
                _seed_torch(module, _TorchIsComing.seed)

            spec.loader.exec_module = execute_and_seed  # type: ignore[method-assign]
        return spec


def watch_for_torch() -> None:
    """Seed torch when it is first imported, if that has not happened yet."""
    if "torch" not in sys.modules and not any(isinstance(finder, _TorchIsComing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchIsComing())
