"""Allocates for `stagepipe.empty` in shared memory, so that sending copies nothing. In the worker's process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stagepipe.plan import HopPlan
from stagepipe.transport import SharedMemoryPool


def allocate_shared(memory: SharedMemoryPool, outbound: HopPlan, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array or tensor on a block of `memory`; None where a private allocation is as good for the hop."""
    is_tensor = type(dtype).__module__ == "torch"
    element_type = dtype if is_tensor else np.dtype(dtype)
    nbytes = math.prod(shape, start=element_type.itemsize)
    rule = outbound.rule
    if nbytes < rule.threshold_bytes or not rule.uses_blocks or (not is_tensor and element_type.hasobject):
        return None
    lease = memory.loan(nbytes)
    if not is_tensor:
        return np.ndarray(shape, dtype, lease)
    import torch

    return torch.frombuffer(lease, dtype=dtype).reshape(shape)
