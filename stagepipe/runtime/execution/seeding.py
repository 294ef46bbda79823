"""Seeds the global random generators before each item, so that any library's augmentations are reproducible.

In workers and inline.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from stagepipe.core import call_at_first_use_of_torch, derive_seed, get_used_torch
from stagepipe.runtime.execution.lazy_seeding import LazyRandom, LazyRandomState, SeededItem, SeedParts

seeded_item: Final = SeededItem()
lazy_random: Final = LazyRandom(seeded_item)
lazy_random_state: Final = LazyRandomState(seeded_item)


def install_lazy_seeding() -> bool:
    """Seed Python's and NumPy's generators at their first use from now on; return whether that can be exact for both.

    Called in a process of workers before user code is imported: a generator is seeded before each item where somebody
    has imported one of its functions before.
    """
    lazy_random.install(for_good=True)
    lazy_random_state.install(for_good=True)
    call_at_first_use_of_torch(_seed_used_torch)
    return lazy_random.can_wait and lazy_random_state.can_wait


def _begin_fork() -> None:
    """Let no thread change a generator during a fork; and parent and child draw the same."""
    for lazy in (lazy_random, lazy_random_state):
        lazy.lock.acquire()
        lazy.settle()


def _end_fork() -> None:
    lazy_random_state.lock.release()
    lazy_random.lock.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_end_fork)


def _seed_used_torch() -> None:
    """Seed a torch that the fork server has imported, when a stage first uses it."""
    if seeded_item.parts is not None:
        _seed_torch(seeded_item.derive_seed())


def make_global_seeder() -> Callable[[SeedParts], None]:
    """Return the function that seeds the global generators for an item: at their first use, where they can wait."""
    item, random_, random_state = seeded_item, lazy_random, lazy_random_state
    seed_torch: Callable[[int], None] | None = None

    def seed_lazily(parts: SeedParts) -> None:
        nonlocal seed_torch
        item.parts = parts
        if not random_.is_waiting:
            random_.begin_item()
        if not random_state.is_waiting:
            random_state.begin_item()
        if seed_torch is not None:
            seed_torch(derive_seed(*parts))
        elif get_used_torch() is not None:
            _seed_torch(derive_seed(*parts))
            seed_torch = _make_torch_seeder()

    return seed_lazily


def _seed_torch(seed: int) -> None:
    """Seed torch's generators, unless it is just being imported.

    The default generator is seeded directly, in 1 us: `torch.manual_seed` takes 70 us, because it looks for every kind
    of accelerator. CUDA's generators are seeded when a stage first uses CUDA, and from then on.
    """
    generator = getattr(sys.modules["torch"], "default_generator", None)
    if generator is None:
        return
    generator.manual_seed(seed)
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None:
        _seed_cuda(cuda, seed)


def _make_torch_seeder() -> Callable[[int], None] | None:
    """Return a quicker `_seed_torch`; None before its first call for a torch that is imported."""
    cuda: Any = sys.modules.get("torch.cuda")
    tracker: Any = getattr(cuda, "_lazy_seed_tracker", None)
    queued_call = getattr(tracker, "manual_seed_all_cb", None)
    if queued_call is None:
        return None
    manual_seed = sys.modules["torch"].default_generator.manual_seed

    def seed_torch(seed: int) -> None:
        manual_seed(seed)
        if cuda._initialized or tracker.manual_seed_all_cb is not queued_call:  # noqa: SLF001 - as in `_seed_cuda`
            _seed_cuda(cuda, seed)

    return seed_torch


def _seed_cuda(cuda: Any, seed: int) -> None:
    """Seed CUDA's generators, or see to it that they are seeded when CUDA starts."""
    if cuda.is_initialized():
        cuda.manual_seed_all(seed)
        return
    queued_call = cuda._lazy_seed_tracker.manual_seed_all_cb  # noqa: SLF001 - it has no public name
    if queued_call is None or queued_call[0] is not _seed_cuda_devices:
        # Replaces a seed that was set while the stage was built. It takes 0.1 ms, so it is done once, not per item.
        cuda._lazy_call(_seed_cuda_devices, seed_all=True)  # noqa: SLF001 - `manual_seed_all` does it too


def _seed_cuda_devices() -> None:
    """Seed CUDA's generators when CUDA starts, while a stage works on an item: its draws must be reproducible too.

    Each device: `manual_seed_all` would only queue another call while CUDA starts.
    """
    for generator in sys.modules["torch.cuda"].default_generators:
        generator.manual_seed(seeded_item.derive_seed())


class _TorchImportSeeder(importlib.abc.MetaPathFinder):
    """Seeds torch when a stage imports it while it works on an item: that item's draws must be reproducible too."""

    initial_state: Any = None
    """The state of torch's generator after the import, before it was seeded."""
    is_for_frames = False
    """Whether it seeds only while an inline run has a frame: else the caller's own code imports torch."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find torch as the other finders do, with a loader that seeds it after the import."""
        if name != "torch" or self not in sys.meta_path or (self.is_for_frames and lazy_random.frame is None):
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            exec_module = spec.loader.exec_module

            def exec_module_and_seed(module: ModuleType) -> None:
                exec_module(module)
                _TorchImportSeeder.initial_state = module.default_generator.get_state()
                _seed_torch(seeded_item.derive_seed())

            spec.loader.exec_module = exec_module_and_seed  # type: ignore[method-assign]
        return spec


def install_torch_import_hook() -> None:
    """Seed torch at its first import, unless it is imported already."""
    if "torch" not in sys.modules and not _has_torch_import_hook():
        sys.meta_path.insert(0, _TorchImportSeeder())


def _has_torch_import_hook() -> bool:
    return any(isinstance(finder, _TorchImportSeeder) for finder in sys.meta_path)


@contextmanager
def torch_import_hook_for_frames() -> Iterator[None]:
    """Inside, a first import of torch in a frame is seeded."""
    if _has_torch_import_hook():  # of a worker, or of a run around this one
        yield
        return
    install_torch_import_hook()
    _TorchImportSeeder.is_for_frames = True
    try:
        yield
    finally:
        _TorchImportSeeder.is_for_frames = False
        if sys.meta_path is not None:  # None while the interpreter ends
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _TorchImportSeeder)]


def get_initial_torch_state() -> Any:
    """Return the state that torch's generator had after the import; None where a stage did not import torch."""
    return _TorchImportSeeder.initial_state
