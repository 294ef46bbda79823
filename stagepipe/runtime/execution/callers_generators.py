"""Keeps the global random generators of the caller apart from those of an inline run. In the caller's process."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy.random

from stagepipe.core import stage_locals
from stagepipe.runtime.execution.seeding import get_initial_torch_state, without_torch_import_hook_after

_NO_QUEUED_CUDA_SEEDS: Final[dict[str, Any]] = {"manual_seed_all_cb": None, "manual_seed_cb": None, "call_order": []}
"""What `torch.cuda` keeps of seeds after its import."""


class IsolatedGenerators:
    """The global generators as an inline run sees them: Python's, NumPy's, torch's, and CUDA's once CUDA is in use.

    Their states are swapped in while the run's stages work, and the caller's are put back after. A run starts with a
    copy of the caller's. About 0.1 ms each time, nearly all of it for NumPy's.
    """

    def __init__(self, *, is_reseeded: bool) -> None:
        """`is_reseeded`: the run seeds them before all that draws, so its own states need not be kept."""
        self._is_reseeded = is_reseeded
        self._states: _GlobalStates | None = None
        self._queued_cuda_seeds: dict[str, Any] = {}

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Inside the `with`, the global generators and `context()` are the run's."""
        context = stage_locals.context
        callers_states = _capture_states()
        if self._states is not None:
            _restore_states(self._states)
        _get_queued_cuda_seeds().update(self._queued_cuda_seeds)
        try:
            with without_torch_import_hook_after():
                yield
        finally:
            if not self._is_reseeded:
                self._states = _capture_states()
            self._queued_cuda_seeds = dict(_get_queued_cuda_seeds())
            _restore_states(callers_states)
            stage_locals.context = context


@dataclass(frozen=True, kw_only=True)
class _GlobalStates:
    """The states of all global generators; None for torch before its import, and for CUDA before its start."""

    python: tuple[Any, ...]
    numpy: Any
    torch: Any
    cuda: list[Any] | None
    queued_cuda_seeds: dict[str, Any]


def _capture_states() -> _GlobalStates:
    torch: Any = sys.modules.get("torch")
    cuda: Any = sys.modules.get("torch.cuda")
    return _GlobalStates(
        python=random.getstate(),
        numpy=numpy.random.get_state(legacy=False),  # noqa: NPY002 - libraries draw from the global generator
        torch=torch.default_generator.get_state() if hasattr(torch, "default_generator") else None,
        cuda=[generator.get_state() for generator in cuda.default_generators] if _is_cuda_running() else None,
        queued_cuda_seeds={**_NO_QUEUED_CUDA_SEEDS, **_get_queued_cuda_seeds()},
    )


def _restore_states(states: _GlobalStates) -> None:
    random.setstate(states.python)
    numpy.random.set_state(states.numpy)  # noqa: NPY002
    torch: Any = sys.modules.get("torch")
    torch_state = get_initial_torch_state() if states.torch is None else states.torch
    if torch_state is not None and hasattr(torch, "default_generator"):
        torch.default_generator.set_state(torch_state)
    if _is_cuda_running():
        _restore_cuda(states)
    else:
        _get_queued_cuda_seeds().update(states.queued_cuda_seeds)


def _restore_cuda(states: _GlobalStates) -> None:
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
