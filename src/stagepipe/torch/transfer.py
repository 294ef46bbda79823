"""From shared memory to where the training step wants an item: pinned memory, a device. In the training process.

The one place that knows of devices. `Transfer` is asked once a loader, and is called with each item in turn.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from stagepipe.torch.tensors import replaced

_IDLE = (
    "pin_memory=True does nothing here: no accelerator was found, and pinned memory is only of use to one; leave it "
    "out, or say device= when there is one"
)


class Transfer:
    """Moves the tensors of an item. With neither `pin_memory` nor `device` it does nothing.

    >>> Transfer(device="cpu")({"x": torch.zeros(1)})
    {'x': tensor([0.])}
    """

    def __init__(self, *, pin_memory: bool = False, device: torch.device | str | int | None = None) -> None:
        """Warns, as DataLoader does, where there is nothing to pin memory for."""
        self.device = None if device is None else torch.device(device)
        if pin_memory and not torch.accelerator.is_available():
            warnings.warn(_IDLE, UserWarning, stacklevel=3)
        self._idle = self.device is None

    def __call__(self, item: Any) -> Any:
        """The item, its tensors on the device."""
        return item if self._idle else replaced(item, self._moved)

    def _moved(self, value: Any) -> Any:
        return value.to(self.device, non_blocking=True) if isinstance(value, torch.Tensor) else value
