"""The table by which a pickler finds who takes a type's bytes out. torch and PIL are met here, never imported."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from stagepipe.transport.arrays import Note, rebuild_array, rebuild_fortran, rebuild_small, reduce_array
from stagepipe.transport.images import pickles_as_image, rebuild_image, reduce_image
from stagepipe.transport.stacks import Stack, rebuild_stack, reduce_stack
from stagepipe.transport.tensors import rebuild_subclass, rebuild_tensor, rebuild_with_grad, reduce_tensor

Reducer = Callable[[Any], Any]


class Reducers(dict[type, Reducer]):
    """A pickler's dispatch table that learns torch's and PIL's types when it first meets them."""

    def __init__(self, note: Note, small_bytes: int = 0) -> None:
        """`note` takes the buffers; arrays of less than `small_bytes` stay in the pickle."""
        super().__init__()
        self._note = note
        self[Stack] = reduce_stack
        self[np.ndarray] = lambda array: reduce_array(array, note, small_bytes)

    def __missing__(self, cls: type) -> Reducer:
        """The reducer of a type that is not in the table; KeyError sends pickle to the type's own."""
        note = self._note
        registered: Reducer | None = copyreg.dispatch_table.get(cls)
        if registered is not None:  # what somebody registered on purpose comes first, as it does in pickle
            return registered
        torch, image = sys.modules.get("torch"), sys.modules.get("PIL.Image")
        if torch is not None and issubclass(cls, torch.Tensor):
            self[cls] = lambda tensor: reduce_tensor(tensor, note)
        elif image is not None and issubclass(cls, image.Image) and pickles_as_image(cls):
            self[cls] = lambda image: reduce_image(image, note)
        else:
            raise KeyError(cls)
        return self[cls]


# Two bytes in the pickle instead of a module and a name to look up; 240 to 255 are free for private use (copyreg).
_REBUILDERS = (
    rebuild_array,
    rebuild_fortran,
    rebuild_tensor,
    rebuild_subclass,
    rebuild_image,
    rebuild_with_grad,
    rebuild_small,
    rebuild_stack,
)
for _number, _function in enumerate(_REBUILDERS):
    copyreg.add_extension(_function.__module__, _function.__name__, 0xF3 + _number)
