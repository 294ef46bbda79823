"""Seeds the global random generators before each item, so that any library's augmentations are reproducible.

In workers and inline.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy.random


def seed_global_generators(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators with a 64-bit `seed`.

    torch's default generator is seeded directly, in 1 us: `torch.manual_seed` takes 70 us, because it looks for every
    kind of accelerator. CUDA's generators are seeded when a stage first uses CUDA, and from then on.
    """
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - libraries' augmentations draw from the global generator
    torch = sys.modules.get("torch")
    if torch is None:
        _TorchImportSeeder.seed = seed
    elif hasattr(torch, "default_generator"):
        _seed_torch(torch, seed)


def _seed_torch(torch: Any, seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    cuda = sys.modules.get("torch.cuda")
    if cuda is None:
        return
    if cuda.is_initialized():
        cuda.manual_seed_all(seed)
        return
    _CudaStartSeeder.seed = seed
    queued_call = cuda._lazy_seed_tracker.manual_seed_all_cb  # noqa: SLF001 - it has no public name
    if queued_call is None or queued_call[0] != _CudaStartSeeder.seed_devices:
        # Replaces a seed that was set while the stage was built. It takes 0.1 ms, so it is done once, not per item.
        cuda._lazy_call(_CudaStartSeeder.seed_devices, seed_all=True)  # noqa: SLF001 - `manual_seed_all` does it too


class _CudaStartSeeder:
    """Seeds CUDA's generators when CUDA starts, while a stage works on an item: its draws must be reproducible too."""

    seed = 0

    @classmethod
    def seed_devices(cls) -> None:
        """Seed each device. `manual_seed_all` would only queue another call while CUDA starts."""
        for generator in sys.modules["torch.cuda"].default_generators:
            generator.manual_seed(cls.seed)


class _TorchImportSeeder(importlib.abc.MetaPathFinder):
    """Seeds torch when a stage imports it while it works on an item: that item's draws must be reproducible too."""

    seed = 0
    initial_state: Any = None
    """The state of torch's generator after the import, before it was seeded."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch as the other finders do, with a loader that seeds it after the import."""
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            exec_module = spec.loader.exec_module

            def exec_module_and_seed(module: ModuleType) -> None:
                exec_module(module)
                _TorchImportSeeder.initial_state = module.default_generator.get_state()
                _seed_torch(module, _TorchImportSeeder.seed)

            spec.loader.exec_module = exec_module_and_seed  # type: ignore[method-assign]
        return spec


def install_torch_import_hook() -> None:
    """Seed torch at its first import, unless it is imported already."""
    if "torch" not in sys.modules and not _has_torch_import_hook():
        sys.meta_path.insert(0, _TorchImportSeeder())


def _has_torch_import_hook() -> bool:
    return any(isinstance(finder, _TorchImportSeeder) for finder in sys.meta_path)


@contextmanager
def without_torch_import_hook_after() -> Iterator[None]:
    """Inside, a first import of torch is seeded; after it, only if it was before."""
    had_hook = _has_torch_import_hook()
    install_torch_import_hook()
    try:
        yield
    finally:
        if not had_hook:
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _TorchImportSeeder)]


def get_initial_torch_state() -> Any:
    """Return the state that torch's generator had after the import; None where a stage did not import torch."""
    return _TorchImportSeeder.initial_state
