"""What torch's `get_worker_info()` answers, and a `worker_init_fn`. In the processes that read a dataset.

torch is recognized without importing it: a dataset that asks for its worker has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from stagepipe.core.stage_context import WorkerIdentity, stage_locals

_TORCH_MODULE: Final = "torch.utils.data._utils.worker"
"""The module that holds the answer, in `_worker_info`. torchdata sets it there too."""


def set_worker_info(identity: WorkerIdentity, dataset: Any) -> Any:
    """Let `torch.utils.data.get_worker_info()` describe this worker. Returns what it answered before."""
    module: Any = sys.modules.get(_TORCH_MODULE)
    if module is None:
        return None
    before = module._worker_info  # noqa: SLF001 - there is no public way
    module._worker_info = module.WorkerInfo(  # noqa: SLF001
        id=identity.worker,
        num_workers=identity.worker_count,
        seed=identity.seed + identity.worker,
        dataset=dataset,
    )
    return before


@contextmanager
def show_worker_info(identity: WorkerIdentity, dataset: Any) -> Iterator[None]:
    """Let `get_worker_info()` describe this worker inside a `with`.

    >>> with show_worker_info(WorkerIdentity(0, 2, seed=17), dataset=[1, 2]):
    ...     pass
    """
    before = set_worker_info(identity, dataset)
    try:
        yield
    finally:
        module: Any = sys.modules.get(_TORCH_MODULE)
        if module is not None:
            module._worker_info = before  # noqa: SLF001


def call_worker_init_fn(worker_init_fn: Callable[[int], Any] | None, dataset: Any) -> None:
    """Call a DataLoader's `worker_init_fn` with the number of this worker. `get_worker_info()` describes it meanwhile.

    Inline there is no worker, so nothing is called, as with `num_workers=0`.
    """
    identity = stage_locals.worker_identity
    if worker_init_fn is not None and identity is not None:
        with show_worker_info(identity, dataset):
            worker_init_fn(identity.worker)
