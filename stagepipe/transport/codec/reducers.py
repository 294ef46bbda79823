"""The pickler's dispatch table: which function takes the bytes of a type out. Recognizes torch and PIL unimported."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from stagepipe.core import get_used_torch
from stagepipe.transport.codec.arrays import (
    BufferRegistrar,
    rebuild_array,
    rebuild_fortran,
    rebuild_small,
    reduce_array,
)
from stagepipe.transport.codec.images import pickles_as_image, rebuild_image, reduce_image
from stagepipe.transport.codec.stacking import StackedArrays, rebuild_stacked_arrays, reduce_stacked_arrays
from stagepipe.transport.codec.tensors import rebuild_subclass, rebuild_tensor, rebuild_with_grad, reduce_tensor

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
