"""An item into a pickle and its buffers, and back. One encoder a sending process; decoding is a function.

Pickle runs only between our own processes, over inherited descriptors that nobody else can write to.
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
from stagepipe.transport.arrays import incoming
from stagepipe.transport.lease import Lease, Memory
from stagepipe.transport.reducers import Reducers
from stagepipe.transport.stacks import stacked

Box = list[Lease]
"""A list of one lease, so that whoever takes it out holds the only reference."""


@dataclass(slots=True)
class Buffer:
    """A buffer that left the pickle: bytes to be copied (`source`), or a place in a block (`lease`, `start`).

    `lease` is an index into the encoder's leases, so that no second reference stands in the way of handing one over.
    """

    nbytes: int
    source: np.ndarray[Any, Any] | None
    lease: int = -1
    start: int = 0
    out_of_band: bool = False


class Encoder:
    """Turns items into pickles. After `encode`, `pickle`, `buffers` and `leases` hold the result until `clear`."""

    def __init__(self, memory: Memory, small_bytes: int = 0) -> None:
        """`memory` is asked whether a tensor already lies in an arena; smaller arrays stay in the pickle."""
        self._memory = memory
        self._file = io.BytesIO()
        self._pickler = pickle.Pickler(self._file, 5, buffer_callback=self._out_of_band)
        self._pickler.dispatch_table = Reducers(self._note, small_bytes)
        self.pickle = b""
        self.buffers: list[Buffer] = []
        self.leases: list[Box] = []

    def encode(self, item: object) -> None:
        """Pickle `item`. Raises what its own pickling raises, and keeps nothing of it then."""
        file = self._file
        try:
            self._pickler.dump(stacked(item))
            self.pickle = file.getvalue()
        except BaseException:
            self.clear()
            raise
        finally:
            self._pickler.clear_memo()
            file.seek(0)
            file.truncate()

    def clear(self) -> None:
        """Let go of the last item."""
        self.pickle = b""
        self.buffers = []
        self.leases = []

    def raw(self, buffer: Buffer) -> NDArray[np.uint8]:
        """The bytes of a buffer, wherever it lies."""
        if buffer.source is not None:
            return np.ascontiguousarray(buffer.source).reshape(-1).view(np.uint8)
        (lease,) = self.leases[buffer.lease]
        return np.asarray(lease[buffer.start : buffer.start + buffer.nbytes])

    def copy(self, buffer: Buffer, room: NDArray[np.uint8]) -> None:
        """Copy a buffer into `room`, once, also where it is strided."""
        source = buffer.source
        if source is None or source.flags.c_contiguous:
            room[...] = self.raw(buffer)
        else:
            room.view(source.dtype).reshape(source.shape)[...] = source

    def _note(self, array: np.ndarray[Any, Any]) -> int:
        nbytes = array.nbytes
        if not nbytes:
            return -1
        buffers = self.buffers
        buffers.append(self._place(array, nbytes))
        return len(buffers) - 1

    def _place(self, array: np.ndarray[Any, Any], nbytes: int) -> Buffer:
        lease = self._lease_of(array)
        if lease is None or not array.flags.c_contiguous:
            return Buffer(nbytes, array)
        # All of a block lies at its start; to ask NumPy for the address costs a microsecond.
        start = 0 if nbytes == lease.size else array.__array_interface__["data"][0] - lease.start
        for number, box in enumerate(self.leases):
            if box[0] is lease:
                return Buffer(nbytes, None, number, start)
        self.leases.append([lease])
        return Buffer(nbytes, None, len(self.leases) - 1, start)

    def _lease_of(self, array: np.ndarray[Any, Any]) -> Lease | None:
        base = array.base
        while isinstance(base, np.ndarray):
            if type(base) is Lease and base.token is not None:
                return base
            base = base.base
        if base is None or isinstance(base, bytes):
            return None
        return self._memory.find(array.__array_interface__["data"][0], array.nbytes)

    def _out_of_band(self, buffer: pickle.PickleBuffer) -> bool:
        """True leaves the buffer in the pickle: one that is not contiguous, or empty."""
        try:
            raw = np.frombuffer(buffer.raw(), np.uint8)
        except (BufferError, ValueError):
            return True
        if not raw.size:
            return True
        self.buffers.append(Buffer(raw.size, raw, out_of_band=True))
        return False


def decode(data: Any, buffers: list[Any], out_of_band: Sequence[memoryview], *, readonly: bool) -> object:
    """The item. `readonly` marks its arrays so; TransportError with the cause if it cannot be rebuilt."""
    try:
        incoming.readonly = readonly
        if not buffers:
            return pickle.loads(data)
        incoming.buffers = buffers
        return pickle.loads(data, buffers=out_of_band)
    except Exception as error:
        message = f"an item cannot be rebuilt on this side: {type(error).__name__}: {error}"
        raise TransportError(message) from error
    finally:
        if buffers:
            incoming.buffers = []
