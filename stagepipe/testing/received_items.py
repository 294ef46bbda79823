"""Items as another process would receive them: encoded and decoded as on a hop. In the caller's process.

A stage that works on these works in a worker too: what cannot be pickled fails, arrays are read-only, and a tensor that
is written to is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagepipe.core import UsageError
from stagepipe.transport import Encoder, SharedMemoryPool, decode


class ReceivedItems:
    """A source of items, each of which has travelled. `mutable` items may be written to."""

    def __init__(self, items: Sequence[Any], *, mutable: bool) -> None:
        self._items = items
        self._mutable = mutable
        self._lent_buffers: list[tuple[int, np.ndarray[Any, Any], bytes]] = []
        """The number of an item, a buffer that its stage has, and what was in it before."""

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        """Return an item as a stage receives it."""
        item, buffers = transfer(self._items[index], readonly=not self._mutable)
        if not self._mutable:
            self._lent_buffers += [(index, buffer, buffer.tobytes()) for buffer in buffers]
        return item

    def check_unchanged(self, stage: str) -> None:
        """Raise UsageError if the stage has written to an item, past the read-only flag: to a tensor, or in C."""
        for index, buffer, before in self._lent_buffers:
            if buffer.tobytes() != before:
                raise UsageError(
                    f"stage {stage}, item {index}: the stage wrote to its input, which kills a worker: there it is "
                    "read-only memory that other processes share; copy it, or set mutable=True"
                )


def transfer(item: object, *, readonly: bool) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """Return an item as it arrives in another process, and the buffers that its arrays and tensors lie in.

    Raises what pickling raises, and TransportError if it cannot be unpickled.
    """
    encoder = Encoder(SharedMemoryPool(None, {}, {}))
    encoder.encode(item)
    buffers = [encoder.raw_bytes(buffer).copy() for buffer in encoder.buffers]
    pickle_buffers = [
        data.data.toreadonly() if readonly else data.data
        for buffer, data in zip(encoder.buffers, buffers, strict=True)
        if buffer.is_pickle_buffer
    ]
    return decode(encoder.pickle_data, buffers, pickle_buffers, readonly=readonly), buffers
