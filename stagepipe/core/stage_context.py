"""The API inside a stage function: `context()`, `empty()` and `SKIP`.

The worker sets `stage_locals.context` before each item, and lends its shared memory through `stage_locals.allocate`.
Outside a worker, and with `--inline`, `empty` makes an ordinary allocation, so a stage runs anywhere.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from stagepipe.core.positions import Key


class Skip:
    """The type of SKIP, for annotations: `def keep_large(image: Image) -> Image | Skip`."""

    def __reduce__(self) -> str:
        return "SKIP"  # by name: functions of a script carry their globals along, and workers compare by identity

    def __repr__(self) -> str:
        return "stagepipe.SKIP"


SKIP: Final = Skip()
"""A stage that returns this drops the item, without an error.

    def keep_large(image):
        return image if image.shape[0] >= 224 else stagepipe.SKIP
"""


def derive_seed(seed: int, epoch: int, stage: str, key: Key) -> int:
    """A 64-bit seed that depends only on these four values, not on the worker or the order of items.

    >>> derive_seed(17, 0, "augment", (3,)) == derive_seed(17, 0, "augment", (3,))
    True
    """
    hasher = _SEED_HASHER.copy()
    hasher.update(_make_packer(len(key))(seed, epoch, *key) + stage.encode())
    return int.from_bytes(hasher.digest(), "little")


_SEED_HASHER: Final = hashlib.blake2b(digest_size=8)
"""Copied for each seed: creating it takes twice as long as the rest. Where torch is used, each item has a seed."""


@cache
def _make_packer(key_length: int) -> Callable[..., bytes]:
    return struct.Struct(f"<qq{key_length}q").pack


@dataclass(slots=True)
class Context:
    """Stage, worker, epoch and item of the current call of a stage function; returned by `context()`.

    `worker` and `epoch` count from 0. `item` is the item's key, (item number, part number of a generator, ...); it is
    empty while a source begins an epoch. `seed` is the seed of the run.
    """

    stage: str
    worker: int
    epoch: int
    item: Key
    seed: int
    own_rng: np.random.Generator | None = field(default=None, init=False, repr=False, compare=False)
    """The generator of `rng`, once it was read. Not for stages."""

    @property
    def rng(self) -> np.random.Generator:
        """NumPy generator seeded by (seed, epoch, stage, item), with the same numbers for any number of workers."""
        if self.own_rng is None:
            import numpy as np

            self.own_rng = np.random.default_rng(derive_seed(self.seed, self.epoch, self.stage, self.item))
        return self.own_rng


class WorkerIdentity(NamedTuple):
    """A worker: its number, the worker count of its stage, the seed of the run, and whether it is the source's."""

    worker: int
    worker_count: int
    seed: int
    is_source: bool = False


@dataclass
class _StageLocals(threading.local):
    context: Context | None = None
    allocate: Callable[[tuple[int, ...], Any], Any] | None = field(default=None)
    worker_identity: WorkerIdentity | None = None
    item_clock: Any = None
    """For a thread with an item: the watchdog reads it while a task works on the item. See `StageLoop`."""


stage_locals: Final = _StageLocals()
"""Set by the worker loop for its own thread: threads that a stage starts see no context."""

task_context: Final[ContextVar[Context | None]] = ContextVar("stagepipe_context", default=None)
"""The context of a task of an `async def` stage, and of functions that it starts by `asyncio.to_thread`."""


def find_context() -> Context | None:
    """Return the context of the current call; None outside a stage function."""
    return stage_locals.context or task_context.get()


def context() -> Context:
    """Return the `Context` of the current call: stage, worker, epoch, item, and a random generator `rng`.

    >>> def augment(image):
    ...     return image + context().rng.normal(size=image.shape)

    Raises RuntimeError outside a stage function and on threads that a stage starts.
    """
    found = find_context()
    if found is None:
        message = "stagepipe.context() is available only inside a stage function, on the thread that calls it"
        raise RuntimeError(message)
    return found


def empty(shape: int | tuple[int, ...], dtype: DTypeLike | Any = "float32") -> Any:
    """Return an uninitialised array in shared memory; a stage that returns it, or a view of it, copies nothing.

    A NumPy `dtype` gives an ndarray, a torch dtype a CPU tensor, of shape `shape`. Small arrays, and all arrays outside
    a worker, are ordinary allocations. If the stage keeps the array after returning it, stagepipe copies it.

    >>> empty((2, 3), "uint8").shape
    (2, 3)

    Raises ArenaFullError if the array does not fit the pipeline's `memory`.
    """
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    loan = None if stage_locals.allocate is None else stage_locals.allocate(dims, dtype)
    if loan is not None:
        return loan
    if type(dtype).__module__ == "torch":
        import torch

        tensor_dtype: Any = dtype
        return torch.empty(dims, dtype=tensor_dtype)
    import numpy as np

    return np.empty(dims, dtype)
