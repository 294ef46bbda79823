"""Page-locked blocks: the GPU copies straight from the arenas. In the training process.

A block is registered with CUDA when it first comes by, whole, and stays so: blocks are used again and again, so each
is registered once (a registration costs about as much as a copy). Blocks from 64 KiB up begin and end at pages, so no
two registrations meet in one. The workers of such a pipeline keep the pages of idle blocks (`keep_pages`), because the
device would go on reading those that it has locked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

from stagepipe.transport import PUNCHED_FROM, Lease, class_size

Find = Callable[[int, int], Lease | None]
"""The lease that some bytes lie in, by address and size."""


class Host(Protocol):
    """What CUDA does with host memory; errors are CUDA's numbers, 0 is success."""

    def register(self, address: int, nbytes: int) -> int:
        """Lock pages for the devices: cudaHostRegister."""

    def unregister(self, address: int) -> int:
        """Let go of them: cudaHostUnregister."""


class CudaHost:
    """CUDA itself, as torch brings it.

    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
    """

    def __init__(self) -> None:
        """Start CUDA in this process."""
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def register(self, address: int, nbytes: int) -> int:
        """For all devices (cudaHostRegisterPortable)."""
        return int(self._cudart.cudaHostRegister(address, nbytes, 1))

    def unregister(self, address: int) -> int:
        """See `Host`."""
        return int(self._cudart.cudaHostUnregister(address))


class Pins:
    """The blocks that are registered."""

    def __init__(self, find: Find, host: Host) -> None:
        """`find` knows the blocks of the arenas; `host` registers them."""
        self._find, self._host = find, host
        self._registered: dict[int, int] = {}
        self._refused = False

    def pin(self, address: int, nbytes: int) -> bool:
        """Register the block that these bytes lie in; False where they lie in none, in a small one, or CUDA refuses."""
        if nbytes < PUNCHED_FROM or self._refused:
            return False
        lease = self._find(address, nbytes)
        if lease is None:
            return False
        size = class_size(lease.size)
        if self._registered.get(lease.start, 0) >= size:
            return True
        if lease.start in self._registered:  # a larger block served for a smaller item before
            self._host.unregister(lease.start)
        error = self._host.register(lease.start, size)
        if error:
            self._refuse(error, size)
            return False
        self._registered[lease.start] = size
        return True

    def _refuse(self, error: int, size: int) -> None:
        self._refused = True
        warnings.warn(
            f"pin_memory: CUDA refuses to lock {size} bytes of shared memory (error {error}); copies to the device go "
            "by way of the driver's own buffer from now on. Allow more locked memory (`ulimit -l unlimited`)",
            RuntimeWarning,
            stacklevel=4,
        )

    def close(self) -> None:
        """Let go of all; no copy may be under way."""
        for address in self._registered:
            self._host.unregister(address)
        self._registered.clear()
