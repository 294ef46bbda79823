"""Moves items from shared memory to pinned memory and to a device. Runs in the training process.

The only module that knows about devices. Each `Loader` has one `DeviceTransfer` and calls it with each item.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stagepipe.core import keep_until_exit, register_owner, warn_user
from stagepipe.torch.pinning import CopyEvent, CudaHostMemoryRegistrar, FindLease, HostMemoryRegistrar, PinnedBlocks
from stagepipe.torch.tensors import map_leaves
from stagepipe.transport import Lease

_NO_CUDA_MESSAGE = (
    "pin_memory=True has no effect: no CUDA device was found, and only a GPU uses pinned memory; remove it, or pass "
    "device= where there is one"
)


_PendingCopies = deque[tuple[Sequence[CopyEvent], Any]]
"""Events, and what must be kept until they have passed."""


class DeviceTransfer:
    """Move the tensors of an item. Without `pin_memory` and `device` it returns the item unchanged.

    Copies to a GPU run on their own CUDA stream, from pinned blocks, while the previous step still computes. The
    current stream waits for the copy. With `pin_memory` alone the caller copies, on a stream of its choice.

    A device reads a pinned block after the call that started the copy has returned. So the block stays leased until an
    event that follows the copy has passed: on the copy stream, or on the stream that is current when the caller asks
    for an item and has dropped the tensor.

    >>> DeviceTransfer(device="cpu")({"x": torch.zeros(1)})
    {'x': tensor([0.])}
    """

    def __init__(
        self,
        *,
        pin_memory: bool = False,
        device: torch.device | str | int | None = None,
        find_lease: FindLease | None = None,
        registrar: HostMemoryRegistrar | None = None,
    ) -> None:
        """`find_lease` finds blocks (None: pin nothing). Warns if pinning has no effect, as DataLoader does."""
        self.device = None if device is None else torch.device(device)
        is_cuda = self.device is not None and self.device.type == "cuda"
        if is_cuda and self.device is not None and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())  # it must not change with the caller's
        if pin_memory and registrar is None and not torch.cuda.is_available():
            warn_user(_NO_CUDA_MESSAGE, UserWarning)
            pin_memory = False
        self.is_pinning = pin_memory or is_cuda
        self._find_lease = find_lease
        self._registrar = registrar
        self._pinned_blocks: PinnedBlocks | None = None
        self._is_noop = self.device is None and not self.is_pinning
        self._copy_stream: Any = torch.cuda.Stream(self.device) if is_cuda else None  # type: ignore[no-untyped-call]
        self._pending_copies: _PendingCopies = deque()
        self._yielded_blocks: list[tuple[StorageWeakRef, Lease]] = []
        """The pinned blocks that the caller has tensors on, and may copy from."""
        # Also when nobody calls `close`: a worker must not write to a block that a device reads.
        weakref.finalize(self, _wait_for_copies, self._pending_copies).atexit = False
        register_owner(self)

    def __call__(self, item: Any) -> Any:
        """Return the item with its tensors pinned or on the device."""
        if self._is_noop:
            return item
        if self.is_pinning and self._find_lease is not None:
            map_leaves(item, self._pin_tensor)
        if self._copy_stream is not None:
            return self._copy_on_stream(item)
        return item if self.device is None else map_leaves(item, self._move_tensor)

    def release_blocks(self) -> None:
        """Release the blocks that no copy reads any more. Call it before each item, on the caller's current stream."""
        if self._yielded_blocks:
            self._track_dropped_blocks()
        while self._pending_copies and all(event.query() for event in self._pending_copies[0][0]):
            self._pending_copies.popleft()

    def _track_dropped_blocks(self) -> None:
        """Keep the blocks whose tensors are gone until the copies that the caller has started are over."""
        held: list[tuple[StorageWeakRef, Lease]] = []
        dropped: list[Lease] = []
        for storage, lease in self._yielded_blocks:
            if storage.expired():  # type: ignore[no-untyped-call]
                dropped.append(lease)
            else:
                held.append((storage, lease))
        if dropped and self._pinned_blocks is not None:
            self._yielded_blocks = held
            self._pending_copies.append((self._pinned_blocks.record_events(), dropped))

    def _pin_tensor(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and self._find_lease is not None:
            if self._pinned_blocks is None:
                self._pinned_blocks = PinnedBlocks(self._find_lease, self._registrar or CudaHostMemoryRegistrar())
            storage = value.untyped_storage()
            lease = self._pinned_blocks.pin(storage.data_ptr(), storage.nbytes())
            if lease is not None and self._copy_stream is None:
                self._yielded_blocks.append((StorageWeakRef(storage), lease))  # type: ignore[no-untyped-call]
        return value

    def _move_tensor(self, value: Any) -> Any:
        return value.to(self.device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    def _copy_on_stream(self, item: Any) -> Any:
        """Return the item on the GPU, copied on the copy stream."""
        sources: list[torch.Tensor] = []
        current_stream = torch.cuda.current_stream(self.device)

        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if value.device.type != "cpu":  # made on the current stream, by a stage in this process
                with torch.cuda.stream(current_stream):
                    return value.to(self.device, non_blocking=True)
            sources.append(value)
            moved = value.to(self.device, non_blocking=True)
            moved.record_stream(current_stream)  # allocated from the copy stream's pool, used on the current stream
            return moved

        with torch.cuda.stream(self._copy_stream):
            item = map_leaves(item, move)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._copy_stream)
        current_stream.wait_event(event)
        self._pending_copies.append(([event], sources))
        return item

    def abandon_in_child(self) -> None:
        """Leave the copies and the pinned blocks to the process that made them: CUDA does not work in a child."""
        keep_until_exit((list(self._pending_copies), self._yielded_blocks))
        self._pending_copies.clear()
        self._yielded_blocks = []
        if self._pinned_blocks is not None:
            self._pinned_blocks.abandon_in_child()
            self._pinned_blocks = None

    def close(self) -> None:
        """Wait for the copies in progress and unpin all blocks. Tensors on them stay valid."""
        if self._pinned_blocks is not None:
            self._pinned_blocks.close()
            self._pinned_blocks = None
        self._yielded_blocks.clear()
        _wait_for_copies(self._pending_copies)


def _wait_for_copies(pending_copies: _PendingCopies) -> None:
    while pending_copies:
        for event in pending_copies[0][0]:
            event.synchronize()
        pending_copies.popleft()
