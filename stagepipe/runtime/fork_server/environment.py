"""The environment of workers and of the fork server, and what of it counts only when a process starts.

A forked worker gets the whole environment of a spawned one, but its interpreter and libraries have read parts of it
before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from stagepipe.core import PACKAGE_DIR

_PREFIXES: Final = (
    "LD_",  # the dynamic loader, ld.so(8)
    "GLIBC_TUNABLES",
    "MALLOC_",  # mallopt(3)
    "PYTHON",
    "LC_",
    "LANG",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "NPY_",
    "NUMPY_",
    "NUMEXPR_",
)
_TORCH_PREFIXES: Final = ("TORCH", "PYTORCH_", "ATEN_", "CUDA_MODULE_LOADING", "LOCAL_RANK", "NCCL_")
_USER_MODULE_PREFIXES: Final = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "XDG_", "HOME")
THREAD_COUNT_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_MALLOC_VARIABLES: Final = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""mallopt(3): by default glibc returns the pages of a freed array to the kernel, and the next array of that size faults
them in again. Stages make arrays of the same sizes again and again: decoding JPEG files took 87 page faults per item,
and a tenth more time."""
_SERVER_VARIABLES: Final = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""`torch.cuda.is_available()` then does not start CUDA."""
_SETTABLE: Final = frozenset({*THREAD_COUNT_VARIABLES, *_SERVER_VARIABLES, "PYTHONPATH"})
"""Thread counts are set after the fork, and so is the import path."""


def make_worker_environment(thread_count: int, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: the caller's, with its thread count, its import path and `variables`."""
    package_parent = str(PACKAGE_DIR.parent)
    inherited_path = os.environ.get("PYTHONPATH")
    return {
        **_MALLOC_VARIABLES,
        **os.environ,
        **dict.fromkeys(THREAD_COUNT_VARIABLES, str(thread_count)),
        "PYTHONPATH": package_parent if not inherited_path else f"{inherited_path}{os.pathsep}{package_parent}",
        **variables,
    }


def make_server_environment() -> dict[str, str]:
    """Return the environment of a fork server: a worker's, in which no library starts a thread or CUDA."""
    return make_worker_environment(1, _SERVER_VARIABLES)


def find_variable_read_at_load(
    wanted: Mapping[str, str],
    loaded_with: Mapping[str, str],
    preload: tuple[str, ...],
    thread_count: int | None = None,
) -> str | None:
    """Return a variable in which the two environments differ although it was read at load. None if there is none.

    Of the variables that count threads, those are named that differ from the `thread_count` that a worker sets.

    >>> find_variable_read_at_load({"LD_PRELOAD": "x.so"}, {}, ())
    'LD_PRELOAD'
    >>> find_variable_read_at_load({"MY_OPTION": "1"}, {}, ()) is None
    True
    """
    if thread_count is not None:
        for name in THREAD_COUNT_VARIABLES:
            if wanted.get(name) != str(thread_count):
                return name
    prefixes = (
        _PREFIXES
        + (_TORCH_PREFIXES if "torch" in preload else ())
        + (_USER_MODULE_PREFIXES if set(preload) - {"torch"} else ())
    )
    names = (name for name in sorted({*wanted, *loaded_with}) if name.startswith(prefixes) and name not in _SETTABLE)
    return next((name for name in names if wanted.get(name) != loaded_with.get(name)), None)
