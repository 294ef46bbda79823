"""Page-locks shared-memory blocks, so that the GPU copies straight from the arenas. Runs in the training process.

A block is registered with CUDA as a whole when its first item arrives, and stays registered: blocks are reused, so each
is registered once (a registration costs about as much as a copy). Blocks of 64 KiB and more start and end at page
boundaries, so two registrations never share a page. The workers of such a pipeline keep the pages of idle blocks
(`keep_idle_pages`), because the device would otherwise go on reading pages that the workers had given back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

from stagepipe.transport import MIN_PUNCH_BYTES, Lease, size_class_bytes

FindLease = Callable[[int, int], Lease | None]
"""Finds the lease that holds some bytes, by address and size; None if no lease holds them."""


class HostMemoryRegistrar(Protocol):
    """CUDA's calls for host memory. They return CUDA's error codes; 0 is success."""

    def register(self, address: int, nbytes: int) -> int:
        """Lock pages for the devices (cudaHostRegister)."""

    def unregister(self, address: int) -> int:
        """Unlock them (cudaHostUnregister)."""


class CudaHostMemoryRegistrar:
    """The CUDA runtime that ships with torch.

    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
    """

    def __init__(self) -> None:
        """Initialize CUDA in this process."""
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def register(self, address: int, nbytes: int) -> int:
        """Lock pages for all devices (cudaHostRegisterPortable, flag 1)."""
        return int(self._cudart.cudaHostRegister(address, nbytes, 1))

    def unregister(self, address: int) -> int:
        """See `HostMemoryRegistrar`."""
        return int(self._cudart.cudaHostUnregister(address))


class PinnedBlocks:
    """The blocks that are registered with CUDA."""

    def __init__(self, find_lease: FindLease, registrar: HostMemoryRegistrar) -> None:
        """`find_lease` finds the block of some bytes; `registrar` registers it."""
        self._find_lease = find_lease
        self._registrar = registrar
        self._registered_bytes: dict[int, int] = {}
        self._is_refused = False

    def pin(self, address: int, nbytes: int) -> bool:
        """Register the block that holds these bytes. False if no block or a small one holds them, or CUDA refuses."""
        if nbytes < MIN_PUNCH_BYTES or self._is_refused:
            return False
        lease = self._find_lease(address, nbytes)
        if lease is None:
            return False
        size = size_class_bytes(lease.size)
        if self._registered_bytes.get(lease.address, 0) >= size:
            return True
        if lease.address in self._registered_bytes:  # an earlier, smaller item used this larger block
            self._registrar.unregister(lease.address)
        error_code = self._registrar.register(lease.address, size)
        if error_code:
            self._warn_refused(error_code, size)
            return False
        self._registered_bytes[lease.address] = size
        return True

    def _warn_refused(self, error_code: int, nbytes: int) -> None:
        self._is_refused = True
        warnings.warn(
            f"pin_memory: CUDA refused to lock {nbytes} bytes of shared memory (error {error_code}); from now on "
            "copies to the device go through the driver's own buffer; allow more locked memory (`ulimit -l unlimited`)",
            RuntimeWarning,
            stacklevel=4,
        )

    def close(self) -> None:
        """Unregister all blocks. No copy may be in progress."""
        for address in self._registered_bytes:
            self._registrar.unregister(address)
        self._registered_bytes.clear()
