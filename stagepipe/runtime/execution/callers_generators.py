"""Keeps the global random generators of the caller apart from those of an inline run. In the caller's process.

Python's and NumPy's are lent to the run while its stages work: their states are saved and put back only where something
has used them (`lazy_seeding`). torch's are saved and put back each time, once torch is imported: 1 us.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from stagepipe.core import Context, stage_locals
from stagepipe.runtime.execution.lazy_seeding import Frame, SeedParts
from stagepipe.runtime.execution.seeding import (
    get_initial_torch_state,
    lazy_random,
    lazy_random_state,
    seeded_item,
    torch_import_hook_for_frames,
)

_NO_QUEUED_CUDA_SEEDS: Final[dict[str, Any]] = {"manual_seed_all_cb": None, "manual_seed_cb": None, "call_order": []}
"""What `torch.cuda` keeps of seeds after its import."""


class IsolatedGenerators:
    """The global generators as an inline run sees them: Python's, NumPy's, torch's, and CUDA's once CUDA is in use.

    A run starts with a copy of the caller's. `begin` and `end` are called around each step of the run's stages, inside
    `installed`; `swap_in` does all of it, for what is done once.
    """

    def __init__(self, *, is_reseeded: bool) -> None:
        """`is_reseeded`: the run seeds them before all that draws, so its own states need not be kept."""
        self._is_reseeded = is_reseeded
        self._kept_parts: SeedParts | None = None
        self._kept_states: tuple[Any, Any] = (None, None)
        self._torch: _TorchStates | None = None
        self._queued_cuda_seeds: dict[str, Any] = {}
        self._swap: Swap | None = None
        """That of the last step, if nobody has used the generators in it."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, a use of a generator is noticed, and so is a first import of torch. The caller may run inside."""
        with torch_import_hook_for_frames():
            lazy_random.install()
            lazy_random_state.install()
            try:
                yield
            finally:
                lazy_random_state.uninstall()
                lazy_random.uninstall()

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Inside, the global generators and `context()` are the run's."""
        with self.installed():
            swap = self.begin()
            try:
                yield
            finally:
                self.end(swap)

    def begin(self) -> Swap:
        """Lend the generators to the run until `end`, which gets what this returns."""
        swap = self._swap
        callers_parts = seeded_item.parts
        if (
            swap is None
            or swap.is_used
            or not (lazy_random.is_waiting and lazy_random_state.is_waiting)
            or lazy_random.frame is not None
            or lazy_random_state.frame is not None
            or callers_parts is not None
        ):
            kept_random, kept_random_state = self._kept_states
            swap = Swap(
                Frame(callers_parts, self._kept_parts, kept_random),
                Frame(callers_parts, self._kept_parts, kept_random_state),
            )
            seeded_item.parts = self._kept_parts
            lazy_random.lend(swap.random)
            lazy_random_state.lend(swap.random_state)
        else:  # nobody has used them since the last step, and both wait: most of the time
            lazy_random.frame = swap.random
            lazy_random_state.frame = swap.random_state
        swap.is_used = True
        swap.context = stage_locals.context
        if "torch" in sys.modules:
            swap.torch = _capture_torch()
            if self._torch is not None:
                _restore_torch(self._torch)
            _get_queued_cuda_seeds().update(self._queued_cuda_seeds)
        return swap

    def end(self, swap: Swap) -> None:
        """Give the generators back to the caller, as they were."""
        random, random_state = swap.random, swap.random_state
        if (
            self._is_reseeded
            and lazy_random.frame is random
            and lazy_random_state.frame is random_state
            and not (random.is_saved or random_state.is_saved)
            and random.outer is None
            and random.callers_parts is None
            and not lazy_random.is_permanent
        ):
            lazy_random.frame = lazy_random_state.frame = None
            seeded_item.parts = None
            swap.is_used = False
            self._swap = swap
        else:
            self._take_back(swap)
        if "torch" in sys.modules:
            if not self._is_reseeded:
                self._torch = _capture_torch()
            self._queued_cuda_seeds = dict(_get_queued_cuda_seeds())
            _restore_torch(swap.torch)
        stage_locals.context = swap.context

    def _take_back(self, swap: Swap) -> None:
        keeps_state = not self._is_reseeded
        kept_random = lazy_random.take_back(swap.random, keeps_state=keeps_state)
        kept_random_state = lazy_random_state.take_back(swap.random_state, keeps_state=keeps_state)
        if keeps_state:
            self._kept_states = (kept_random, kept_random_state)
            self._kept_parts = seeded_item.parts
        seeded_item.parts = swap.random.callers_parts


class Swap:
    """What is put back at the end of a step of an inline run."""

    __slots__ = ("context", "is_used", "random", "random_state", "torch")

    def __init__(self, random: Frame, random_state: Frame) -> None:
        """For one step; for the next ones too as long as nobody uses the generators."""
        self.random = random
        self.random_state = random_state
        self.context: Context | None = None
        self.torch = _TorchStates()
        self.is_used = False


class _TorchStates:
    """The states of torch's global generators; None for torch before its import, and for CUDA before its start."""

    __slots__ = ("cpu", "cuda", "queued_cuda_seeds")

    def __init__(self, cpu: Any = None, cuda: Any = None, queued_cuda_seeds: dict[str, Any] | None = None) -> None:
        self.cpu = cpu
        self.cuda = cuda
        self.queued_cuda_seeds = _NO_QUEUED_CUDA_SEEDS if queued_cuda_seeds is None else queued_cuda_seeds


def _capture_torch() -> _TorchStates:
    torch: Any = sys.modules["torch"]
    cuda: Any = sys.modules.get("torch.cuda")
    return _TorchStates(
        torch.default_generator.get_state() if hasattr(torch, "default_generator") else None,
        [generator.get_state() for generator in cuda.default_generators] if _is_cuda_running() else None,
        {**_NO_QUEUED_CUDA_SEEDS, **_get_queued_cuda_seeds()},
    )


def _restore_torch(states: _TorchStates) -> None:
    torch: Any = sys.modules["torch"]
    state = get_initial_torch_state() if states.cpu is None else states.cpu
    if state is not None and hasattr(torch, "default_generator"):
        torch.default_generator.set_state(state)
    if _is_cuda_running():
        _restore_cuda(states)
    else:
        _get_queued_cuda_seeds().update(states.queued_cuda_seeds)


def _restore_cuda(states: _TorchStates) -> None:
    """Restore CUDA's generators. Where CUDA started inside the run, seed them as it would have started outside."""
    for index, generator in enumerate(sys.modules["torch.cuda"].default_generators):
        if states.cuda is None:
            generator.seed()  # from the operating system
        else:
            generator.set_state(states.cuda[index])
    if states.cuda is None:
        for queued_call in filter(None, states.queued_cuda_seeds.get("call_order", ())):
            queued_call[0]()


def _is_cuda_running() -> bool:
    cuda: Any = sys.modules.get("torch.cuda")
    return hasattr(cuda, "is_initialized") and bool(cuda.is_initialized())


def _get_queued_cuda_seeds() -> dict[str, Any]:
    """Return what torch keeps of the seeds for CUDA's start, to read and to change."""
    tracker = getattr(sys.modules.get("torch.cuda"), "_lazy_seed_tracker", None)
    return {} if tracker is None else vars(tracker)
