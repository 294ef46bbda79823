"""Ends a worker that cannot use CUDA any more: all its later items would fail too. The supervisor restarts it.

An assertion in a kernel or an access to a wrong address breaks CUDA for the rest of the process:
https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html (cudaErrorAssert, cudaErrorIllegalAddress).
"""

from __future__ import annotations

import os
import sys

from stagepipe.runtime.protocol import BROKEN_CUDA_EXIT_CODE


def is_cuda_broken() -> bool:
    """Whether this process has started CUDA and every call fails since."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return False
    try:
        cuda.synchronize()
    except RuntimeError:
        return True
    return False


def exit_if_cuda_is_broken(error: Exception) -> None:
    """Print `error` and end the process at once if CUDA is broken. The board still names the item."""
    if is_cuda_broken():
        print(error, file=sys.stderr)  # noqa: T201 - the supervisor forwards it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(BROKEN_CUDA_EXIT_CODE)
