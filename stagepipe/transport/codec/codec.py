"""Encodes an item as a pickle and its buffers, and decodes it. A sending process has one encoder.

The pickler's dispatch table says which function takes the bytes of a type out; it recognizes torch and PIL unimported.
Pickles travel only between stagepipe's processes, over inherited descriptors that no other process can write to.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import TransportError, get_used_torch
from stagepipe.transport.codec.arrays import (
    BufferRegistrar,
    StackedArrays,
    decode_context,
    pickles_as_image,
    rebuild_array,
    rebuild_fortran,
    rebuild_image,
    rebuild_small,
    rebuild_stacked_arrays,
    reduce_array,
    reduce_image,
    reduce_stacked_arrays,
    stack_arrays,
)
from stagepipe.transport.codec.tensors import rebuild_subclass, rebuild_tensor, rebuild_with_grad, reduce_tensor
from stagepipe.transport.memory import Lease, SharedMemoryPool

Reducer = Callable[[Any], Any]


class ReducerTable(dict[type, Reducer]):
    """A pickler's dispatch table that adds a torch or PIL type at its first lookup."""

    def __init__(self, register_buffer: BufferRegistrar, min_out_of_band_bytes: int = 0) -> None:
        """`register_buffer` takes the buffers; arrays below `min_out_of_band_bytes` stay in the pickle."""
        super().__init__()
        self._register_buffer = register_buffer
        self[StackedArrays] = reduce_stacked_arrays
        self[np.ndarray] = lambda array: reduce_array(array, register_buffer, min_out_of_band_bytes)

    def __missing__(self, cls: type) -> Reducer:
        """The reducer of a type not in the table; KeyError makes pickle use the type's own."""
        register_buffer = self._register_buffer
        registered: Reducer | None = copyreg.dispatch_table.get(cls)
        if registered is not None:  # an explicit registration comes first, as it does in pickle
            return registered
        torch = get_used_torch()
        pil_image = sys.modules.get("PIL.Image")
        if torch is not None and issubclass(cls, torch.Tensor):
            self[cls] = lambda tensor: reduce_tensor(tensor, register_buffer)
        elif pil_image is not None and issubclass(cls, pil_image.Image) and pickles_as_image(cls):
            self[cls] = lambda image: reduce_image(image, register_buffer)
        else:
            raise KeyError(cls)
        return self[cls]


# An extension code takes two bytes in the pickle, instead of a module and a name to look up. The codes 240 to 255 are
# free for private use: https://peps.python.org/pep-0307/ ("The copyreg extension registry").
_REBUILDERS = (
    rebuild_array,
    rebuild_fortran,
    rebuild_tensor,
    rebuild_subclass,
    rebuild_image,
    rebuild_with_grad,
    rebuild_small,
    rebuild_stacked_arrays,
)
for _index, _rebuilder in enumerate(_REBUILDERS):
    copyreg.add_extension(_rebuilder.__module__, _rebuilder.__name__, 0xF3 + _index)

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
