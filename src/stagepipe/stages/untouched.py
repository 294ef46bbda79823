"""The mistake that a torchvision transform makes silently: a NumPy array is not an image to it, and passes as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stagepipe.stages.kind import is_pil, is_tensor

_TAKE_ARRAYS = frozenset({"ToImage", "ToTensor", "ToPILImage", "Lambda", "Identity"})
_CONTAINERS = frozenset({"Compose", "RandomApply", "RandomChoice", "RandomOrder"})


def ignores_arrays(function: Any) -> str | None:
    """The name of the torchvision transform that would pass a NumPy array through untouched, or None.

    Of a container it is the first transform that counts: the one that sees the array. Known from the types alone, so a
    transform that flips every other image only is found too.

    >>> ignores_arrays(print) is None
    True
    """
    cls = type(function)
    if not cls.__module__.startswith("torchvision.transforms"):
        return None
    if cls.__name__ in _CONTAINERS:
        return ignores_arrays(next(iter(function.transforms), None))
    return None if cls.__name__ in _TAKE_ARRAYS else cls.__name__


def refuse_untouched(function: Any, values: Mapping[str, Any]) -> None:
    """TypeError if `function` would leave the arrays among `values` untouched and finds nothing else to work on."""
    arrays = [name for name, value in values.items() if isinstance(value, np.ndarray)]
    if not arrays or any(is_tensor(value) or is_pil(value) for value in values.values()):
        return
    transform = ignores_arrays(function)
    if transform is not None:
        names = ", ".join(f"`{name}`" for name in arrays)
        raise TypeError(
            f"{transform} leaves the NumPy array {names} untouched: torchvision's transforms work on tensors, "
            "tv_tensors and PIL images; set `as: tensor` or `as: pil`"
        )
