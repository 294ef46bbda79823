"""Encodes an item as a pickle and its buffers, and decodes it. A sending process has one encoder.

Pickles travel only between stagepipe's own processes, over inherited descriptors that no other process can write to.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import TransportError
from stagepipe.transport.codec.arrays import decode_context
from stagepipe.transport.codec.reducers import ReducerTable
from stagepipe.transport.codec.stacking import stack_arrays
from stagepipe.transport.memory import Lease, SharedMemoryPool

LeaseBox = list[Lease]
"""A list with one lease: popping it hands over the only reference."""


@dataclass(slots=True)
class EncodedBuffer:
    """A buffer outside the pickle: an array to copy (`source`), or a range of a block (`lease_index`, `lease_offset`).

    `lease_index` is an index into the encoder's `lease_boxes`: a second reference to the lease would prevent handing it
    over.
    """

    nbytes: int
    source: np.ndarray[Any, Any] | None
    lease_index: int = -1
    lease_offset: int = 0
    is_pickle_buffer: bool = False


class Encoder:
    """Encodes items. After `encode`, the result is in `pickle_data`, `buffers` and `lease_boxes` until `clear`."""

    def __init__(self, memory: SharedMemoryPool, min_out_of_band_bytes: int = 0) -> None:
        """`memory` tells which tensors are in an arena already. Arrays below `min_out_of_band_bytes` stay pickled."""
        self._memory = memory
        self._file = io.BytesIO()
        self._pickler = pickle.Pickler(self._file, 5, buffer_callback=self._on_pickle_buffer)
        self._pickler.dispatch_table = ReducerTable(self._register_buffer, min_out_of_band_bytes)
        self.pickle_data = b""
        self.buffers: list[EncodedBuffer] = []
        self.lease_boxes: list[LeaseBox] = []
        self._lease_indexes: dict[int, int] = {}
        """The indexes in `lease_boxes` by the identity of the lease: an item may have thousands."""

    def encode(self, item: object) -> None:
        """Pickle `item`. If pickling raises, the exception passes through and no result is kept."""
        file = self._file
        try:
            self._pickler.dump(stack_arrays(item))
            self.pickle_data = file.getvalue()
        except BaseException:
            self.clear()
            raise
        finally:
            self._pickler.clear_memo()
            self._lease_indexes.clear()
            file.seek(0)
            file.truncate()

    def clear(self) -> None:
        """Drop all references to the last item."""
        self.pickle_data = b""
        self.buffers = []
        self.lease_boxes = []

    def raw_bytes(self, buffer: EncodedBuffer) -> NDArray[np.uint8]:
        """The bytes of a buffer: uint8, one-dimensional. Copies a strided one."""
        if buffer.source is not None:
            return np.ascontiguousarray(buffer.source).reshape(-1).view(np.uint8)
        (lease,) = self.lease_boxes[buffer.lease_index]
        return np.asarray(lease[buffer.lease_offset : buffer.lease_offset + buffer.nbytes])

    def copy_into(self, buffer: EncodedBuffer, target: NDArray[np.uint8]) -> None:
        """Copy a buffer into `target`, with a single copy even if it is strided."""
        source = buffer.source
        if source is None or source.flags.c_contiguous:
            target[...] = self.raw_bytes(buffer)
        else:
            target.view(source.dtype).reshape(source.shape)[...] = source

    def _register_buffer(self, array: np.ndarray[Any, Any]) -> int:
        nbytes = array.nbytes
        if not nbytes:
            return -1
        buffers = self.buffers
        buffers.append(self._locate_buffer(array, nbytes))
        return len(buffers) - 1

    def _locate_buffer(self, array: np.ndarray[Any, Any], nbytes: int) -> EncodedBuffer:
        lease = self._find_lease(array)
        if lease is None or not array.flags.c_contiguous:
            return EncodedBuffer(nbytes, array)
        # A whole block starts at 0; asking NumPy for the address takes a microsecond.
        lease_offset = 0 if nbytes == lease.size else array.__array_interface__["data"][0] - lease.address
        lease_index = self._lease_indexes.get(id(lease))
        if lease_index is None:
            lease_index = self._lease_indexes[id(lease)] = len(self.lease_boxes)
            self.lease_boxes.append([lease])
        return EncodedBuffer(nbytes, None, lease_index, lease_offset)

    def _find_lease(self, array: np.ndarray[Any, Any]) -> Lease | None:
        base = array.base
        while isinstance(base, np.ndarray):
            if type(base) is Lease and base.block_id is not None:
                return base
            base = base.base
        if base is None or isinstance(base, bytes):
            return None
        return self._memory.find_lease(array.__array_interface__["data"][0], array.nbytes)

    def _on_pickle_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Register a `PickleBuffer`. True leaves it in the pickle: one that is empty or not contiguous."""
        try:
            raw_bytes = np.frombuffer(buffer.raw(), np.uint8)
        except (BufferError, ValueError):
            return True
        if not raw_bytes.size:
            return True
        self.buffers.append(EncodedBuffer(raw_bytes.size, raw_bytes, is_pickle_buffer=True))
        return False


def decode(pickle_data: Any, buffers: Sequence[Any], pickle_buffers: Sequence[memoryview], *, readonly: bool) -> object:
    """The item. Its arrays are read-only with `readonly`. Raises TransportError from the cause if unpickling fails."""
    try:
        decode_context.is_readonly = readonly
        if not buffers:
            return pickle.loads(pickle_data)
        decode_context.buffers = buffers
        return pickle.loads(pickle_data, buffers=pickle_buffers)
    except Exception as error:
        message = f"an item cannot be unpickled in the receiving process: {type(error).__name__}: {error}"
        raise TransportError(message) from error
    finally:
        if buffers:
            decode_context.buffers = []
