"""From shared memory to where the training step wants an item: pinned memory, a device. In the training process.

The one place that knows of devices. `Transfer` is asked once a loader, and is called with each item in turn.
"""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import torch

from stagepipe.torch.pinning import CudaHost, Find, Host, Pins
from stagepipe.torch.tensors import replaced

_IDLE = (
    "pin_memory=True does nothing here: no accelerator was found, and pinned memory is only of use to one; leave it "
    "out, or say device= when there is one"
)


class Transfer:
    """Moves the tensors of an item. With neither `pin_memory` nor `device` it does nothing.

    To a GPU the copy goes on a stream of its own, from pinned blocks, while the step before still computes; the
    current stream waits for it, and a block is kept until its copy's event has passed.

    >>> Transfer(device="cpu")({"x": torch.zeros(1)})
    {'x': tensor([0.])}
    """

    def __init__(
        self,
        *,
        pin_memory: bool = False,
        device: torch.device | str | int | None = None,
        find: Find | None = None,
        host: Host | None = None,
    ) -> None:
        """`find` knows the blocks (None: nothing is pinned). Warns, as DataLoader does, where pinning is of no use."""
        self.device = None if device is None else torch.device(device)
        cuda = self.device is not None and self.device.type == "cuda"
        if pin_memory and host is None and not torch.accelerator.is_available():
            warnings.warn(_IDLE, UserWarning, stacklevel=3)
            pin_memory = False
        self.pins = pin_memory or cuda
        self._find, self._host = find, host
        self._made: Pins | None = None
        self._idle = self.device is None and not self.pins
        self._stream: Any = torch.cuda.Stream(self.device) if cuda else None  # type: ignore[no-untyped-call]
        self._under_way: deque[tuple[Any, Any]] = deque()

    def __call__(self, item: Any) -> Any:
        """The item, its tensors pinned, or on the device."""
        if self._idle:
            return item
        if self.pins and self._find is not None:
            replaced(item, self._pinned)
        if self._stream is not None:
            return self._streamed(item)
        return item if self.device is None else replaced(item, self._moved)

    def _pinned(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and self._find is not None:
            if self._made is None:
                self._made = Pins(self._find, self._host or CudaHost())
            storage = value.untyped_storage()
            self._made.pin(storage.data_ptr(), storage.nbytes())
        return value

    def _moved(self, value: Any) -> Any:
        return value.to(self.device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    def _streamed(self, item: Any) -> Any:
        """The item on the GPU, its copies on the side stream."""
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()
        sources: list[torch.Tensor] = []
        current = torch.cuda.current_stream(self.device)

        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            sources.append(value)
            moved = value.to(self.device, non_blocking=True)
            moved.record_stream(current)  # its memory came from the side stream's pool, and is used on this one
            return moved

        with torch.cuda.stream(self._stream):
            item = replaced(item, move)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        current.wait_event(event)
        self._under_way.append((event, sources))
        return item

    def close(self) -> None:
        """Wait for the copies that are under way, and let go of what is pinned."""
        while self._under_way:
            self._under_way.popleft()[0].synchronize()
        if self._made is not None:
            self._made.close()
            self._made = None
