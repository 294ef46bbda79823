"""What a stage function may ask of its surroundings: `context()`, `empty()` and `SKIP`. One set a worker process.

The worker fills `current` before each item and lends its shared memory through `current.allocate`; outside a worker,
and in `--inline`, `empty` is a plain allocation, so that a stage runs anywhere.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from stagepipe.core.ids import Key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike


class _Skip:
    """The type of SKIP."""

    def __repr__(self) -> str:
        return "stagepipe.SKIP"


SKIP: Final = _Skip()
"""A stage that returns this drops its item."""


def seed_of(seed: int, epoch: int, stage: str, key: Key) -> int:
    """A 64-bit seed that depends on all four and on nothing else: not on the worker, nor on the order of the items.

    >>> seed_of(17, 0, "augment", (3,)) == seed_of(17, 0, "augment", (3,))
    True
    """
    packed = struct.pack(f"<qq{len(key)}q", seed, epoch, *key) + stage.encode()
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


@dataclass
class Context:
    """Where a stage function is being called. `item` is the key: (item number, part of a generator ...)."""

    stage: str
    worker: int
    epoch: int
    item: Key
    seed: int

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator seeded by (seed, epoch, stage, item): the same draws with any number of workers."""
        import numpy as np

        return np.random.default_rng(seed_of(self.seed, self.epoch, self.stage, self.item))


@dataclass
class _Current(threading.local):
    context: Context | None = None
    allocate: Callable[[tuple[int, ...], Any], Any] | None = field(default=None)


current: Final = _Current()
"""Filled by the worker loop; a stage's own threads see it empty."""


def context() -> Context:
    """The stage, worker, epoch and item that is being worked on, with an `rng` of its own.

    >>> def augment(image):
    ...     return image + context().rng.normal(size=image.shape)

    Raises RuntimeError outside a stage.
    """
    if current.context is None:
        message = "stagepipe.context() is known only inside a stage function, on the thread that calls it"
        raise RuntimeError(message)
    return current.context


def empty(shape: int | tuple[int, ...], dtype: DTypeLike | Any = "float32") -> Any:
    """An uninitialised array in the worker's outgoing shared memory: returning it (or a view of it) copies nothing.

    `dtype` is a NumPy dtype (the result is an ndarray) or a torch dtype (the result is a CPU tensor). Small ones, and
    all of them outside a worker, are plain allocations. One that the stage still holds after returning it is copied.

    >>> empty((2, 3), "uint8").shape
    (2, 3)

    Raises ArenaFullError when the pipeline's `memory` does not hold it.
    """
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    lent = None if current.allocate is None else current.allocate(dims, dtype)
    if lent is not None:
        return lent
    if type(dtype).__module__ == "torch":
        import torch

        tensor_dtype: Any = dtype
        return torch.empty(dims, dtype=tensor_dtype)
    import numpy as np

    return np.empty(dims, dtype)
