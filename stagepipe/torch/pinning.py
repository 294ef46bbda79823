"""Page-locks shared-memory blocks, so that the GPU copies straight from the arenas. Runs in the training process.

A block is registered with CUDA as a whole when its first item arrives, and stays registered: blocks are reused, so each
is registered once (a registration costs about as much as a copy). Blocks of 64 KiB and more start and end at page
boundaries, so two registrations never share a page. The workers of such a pipeline keep the pages of idle blocks
(`keep_idle_pages`), because the device would otherwise go on reading pages that the workers had given back.

CUDA locks pages, not addresses: were a registered block unmapped, and its address mapped again, the device would read
the old pages. So each registration keeps its mapping. After the death of a worker an arena is mapped again, elsewhere,
and the registrations of its old mapping are removed.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stagepipe.core import keep_until_exit, warn_user
from stagepipe.transport import MIN_PUNCH_BYTES, Lease, size_class_bytes

FindLease = Callable[[int, int], Lease | None]
"""Finds the lease that holds some bytes, by address and size; None if no lease holds them."""


class CopyEvent(Protocol):
    """An event of a CUDA stream (torch.cuda.Event)."""

    def query(self) -> bool:
        """Whether the stream has passed it."""

    def synchronize(self) -> None:
        """Wait until the stream has passed it."""


class HostMemoryRegistrar(Protocol):
    """CUDA's calls for host memory. `register` and `unregister` return CUDA's error codes; 0 is success."""

    def register(self, address: int, nbytes: int) -> int:
        """Lock pages for the devices (cudaHostRegister)."""

    def unregister(self, address: int) -> int:
        """Unlock them (cudaHostUnregister)."""

    def record_events(self) -> Sequence[CopyEvent]:
        """Record an event on the current stream of each device in use."""

    def wait_for_copies(self) -> None:
        """Wait until no device reads host memory."""


class CudaHostMemoryRegistrar:
    """The CUDA runtime that ships with torch.

    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html
    """

    def __init__(self) -> None:
        """Initialize CUDA in this process."""
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]
        self._cuda: Any = torch.cuda
        self._cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._has_context: Callable[[int], bool] = torch._C._cuda_hasPrimaryContext  # noqa: SLF001 - no public name

    def register(self, address: int, nbytes: int) -> int:
        """Lock pages for all devices (cudaHostRegisterPortable, flag 1)."""
        error_code = int(self._cudart.cudaHostRegister(address, nbytes, 1))
        if error_code:
            self._clear_last_error()
        return error_code

    def unregister(self, address: int) -> int:
        """See `HostMemoryRegistrar`."""
        error_code = int(self._cudart.cudaHostUnregister(address))
        if error_code:
            self._clear_last_error()
        return error_code

    def record_events(self) -> Sequence[CopyEvent]:
        """See `HostMemoryRegistrar`."""
        return [self._cuda.current_stream(device).record_event() for device in self._devices_in_use()]

    def wait_for_copies(self) -> None:
        """See `HostMemoryRegistrar`."""
        for device in self._devices_in_use():
            self._cuda.synchronize(device)

    def _devices_in_use(self) -> list[int]:
        """The devices that this process has used. Touching another one would take half a gigabyte of its memory."""
        return [device for device in range(self._cuda.device_count()) if self._has_context(device)]

    def _clear_last_error(self) -> None:
        """Make torch take the error that CUDA remembers: it would raise it at the user's next operation."""
        import torch

        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")


@dataclass(frozen=True)
class _PinnedBlock:
    arena: int
    nbytes: int
    mapped_memory: Any  # keeps the mapping, not the block


class PinnedBlocks:
    """The blocks that are registered with CUDA."""

    def __init__(self, find_lease: FindLease, registrar: HostMemoryRegistrar) -> None:
        """`find_lease` finds the block of some bytes; `registrar` registers it."""
        self._find_lease = find_lease
        self._registrar = registrar
        self._blocks: dict[int, _PinnedBlock] = {}  # by address
        self._mapped_memory: dict[int, Any] = {}  # by arena: the mapping of its registered blocks
        self._is_refused = False
        # Also when nobody calls `close`. At exit the driver does it, and CUDA may be gone before this runs.
        weakref.finalize(self, _unregister, self._blocks, registrar).atexit = False

    def pin(self, address: int, nbytes: int) -> Lease | None:
        """Register the block that holds these bytes, and return its lease.

        None if no block or a small one holds them, or CUDA refuses.
        """
        if nbytes < MIN_PUNCH_BYTES or self._is_refused:
            return None
        lease = self._find_lease(address, nbytes)
        if lease is None or lease.block_id is None:
            return None
        arena = lease.block_id[0]
        if self._mapped_memory.setdefault(arena, lease.base) is not lease.base:
            self._unpin_arena(arena)
            self._mapped_memory[arena] = lease.base
        size = size_class_bytes(lease.size)
        block = self._blocks.get(lease.address)
        if block is not None and block.nbytes >= size:
            return lease
        if block is not None:  # an earlier, smaller item used this larger block
            _unregister({lease.address: self._blocks.pop(lease.address)}, self._registrar)
        error_code = self._registrar.register(lease.address, size)
        if error_code:
            self._warn_refused(error_code, size)
            return None
        self._blocks[lease.address] = _PinnedBlock(arena, size, lease.base)
        return lease

    def record_events(self) -> Sequence[CopyEvent]:
        """Record events that follow all copies that the caller has started on its current streams."""
        return self._registrar.record_events()

    def _unpin_arena(self, arena: int) -> None:
        """Unregister the blocks of an arena, all of an earlier mapping."""
        addresses = [address for address, block in self._blocks.items() if block.arena == arena]
        _unregister({address: self._blocks.pop(address) for address in addresses}, self._registrar)

    def _warn_refused(self, error_code: int, nbytes: int) -> None:
        self._is_refused = True
        warn_user(
            f"pin_memory: CUDA refused to lock {nbytes} bytes of shared memory (error {error_code}); from now on "
            "copies to the device go through the driver's own buffer; allow more locked memory (`ulimit -l unlimited`)",
            RuntimeWarning,
        )

    def abandon_in_child(self) -> None:
        """Forget the blocks without unregistering them. In a forked child."""
        keep_until_exit(dict(self._blocks))
        self._blocks.clear()

    def close(self) -> None:
        """Wait for the copies in progress and unregister all blocks."""
        _unregister(self._blocks, self._registrar)
        self._mapped_memory.clear()


def _unregister(blocks: dict[int, _PinnedBlock], registrar: HostMemoryRegistrar) -> None:
    """Unregister blocks and forget them, which may unmap them."""
    if blocks:
        registrar.wait_for_copies()
    for address in list(blocks):
        registrar.unregister(address)
        del blocks[address]
