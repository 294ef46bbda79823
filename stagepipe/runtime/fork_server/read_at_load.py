"""The environment variables that only count when a process starts or a library is loaded.

A forked worker gets the whole environment of a spawned one, but its interpreter and libraries have read these before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
_SETTABLE: Final = frozenset(
    {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "PYTHONPATH"}
)
"""Thread counts are set after the fork, and so is the import path."""


def find_variable_read_at_load(
    wanted: Mapping[str, str], loaded_with: Mapping[str, str], preload: tuple[str, ...]
) -> str | None:
    """Return a variable in which the two environments differ although it was read at load. None if there is none.

    >>> find_variable_read_at_load({"LD_PRELOAD": "x.so"}, {}, ())
    'LD_PRELOAD'
    >>> find_variable_read_at_load({"MY_OPTION": "1"}, {}, ()) is None
    True
    """
    prefixes = (
        _PREFIXES
        + (_TORCH_PREFIXES if "torch" in preload else ())
        + (_USER_MODULE_PREFIXES if set(preload) - {"torch"} else ())
    )
    names = (name for name in sorted({*wanted, *loaded_with}) if name.startswith(prefixes) and name not in _SETTABLE)
    return next((name for name in names if wanted.get(name) != loaded_with.get(name)), None)
