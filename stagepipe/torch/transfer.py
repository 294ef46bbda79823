"""Moves items from shared memory to pinned memory and to a device. Runs in the training process.

The only module that knows about devices. Each `Loader` has one `DeviceTransfer` and calls it with each item.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import torch

from stagepipe.torch.pinning import CudaHostMemoryRegistrar, FindLease, HostMemoryRegistrar, PinnedBlocks
from stagepipe.torch.tensors import map_leaves

_NO_ACCELERATOR_MESSAGE = (
    "pin_memory=True has no effect: no accelerator was found, and only an accelerator uses pinned memory; remove it, "
    "or pass device= where there is one"
)


class DeviceTransfer:
    """Move the tensors of an item. Without `pin_memory` and `device` it returns the item unchanged.

    Copies to a GPU run on their own CUDA stream, from pinned blocks, while the previous step still computes. The
    current stream waits for the copy, and a block stays leased until the event of its copy has passed.

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
        if pin_memory and registrar is None and not torch.accelerator.is_available():
            warnings.warn(_NO_ACCELERATOR_MESSAGE, UserWarning, stacklevel=3)
            pin_memory = False
        self.is_pinning = pin_memory or is_cuda
        self._find_lease = find_lease
        self._registrar = registrar
        self._pinned_blocks: PinnedBlocks | None = None
        self._is_noop = self.device is None and not self.is_pinning
        self._copy_stream: Any = torch.cuda.Stream(self.device) if is_cuda else None  # type: ignore[no-untyped-call]
        self._pending_copies: deque[tuple[Any, Any]] = deque()

    def __call__(self, item: Any) -> Any:
        """Return the item with its tensors pinned or on the device."""
        if self._is_noop:
            return item
        if self.is_pinning and self._find_lease is not None:
            map_leaves(item, self._pin_tensor)
        if self._copy_stream is not None:
            return self._copy_on_stream(item)
        return item if self.device is None else map_leaves(item, self._move_tensor)

    def _pin_tensor(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and self._find_lease is not None:
            if self._pinned_blocks is None:
                self._pinned_blocks = PinnedBlocks(self._find_lease, self._registrar or CudaHostMemoryRegistrar())
            storage = value.untyped_storage()
            self._pinned_blocks.pin(storage.data_ptr(), storage.nbytes())
        return value

    def _move_tensor(self, value: Any) -> Any:
        return value.to(self.device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    def _copy_on_stream(self, item: Any) -> Any:
        """Return the item on the GPU, copied on the copy stream."""
        while self._pending_copies and self._pending_copies[0][0].query():
            self._pending_copies.popleft()
        sources: list[torch.Tensor] = []
        current_stream = torch.cuda.current_stream(self.device)

        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            sources.append(value)
            moved = value.to(self.device, non_blocking=True)
            moved.record_stream(current_stream)  # allocated from the copy stream's pool, used on the current stream
            return moved

        with torch.cuda.stream(self._copy_stream):
            item = map_leaves(item, move)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._copy_stream)
        current_stream.wait_event(event)
        self._pending_copies.append((event, sources))
        return item

    def close(self) -> None:
        """Wait for the copies in progress and unpin all blocks."""
        while self._pending_copies:
            self._pending_copies.popleft()[0].synchronize()
        if self._pinned_blocks is not None:
            self._pinned_blocks.close()
            self._pinned_blocks = None
