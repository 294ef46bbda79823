"""Finds torchvision transforms that would return a NumPy array unchanged: to them an array is not an image.

In workers and inline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stagepipe.core import format_setting, is_pil_image, is_tensor

_ARRAY_TRANSFORM_NAMES = frozenset({"ToImage", "ToTensor", "ToPILImage", "Lambda", "Identity"})
_CONTAINER_TRANSFORM_NAMES = frozenset({"Compose", "RandomApply", "RandomChoice", "RandomOrder"})


def find_array_ignoring_transform(function: Any) -> str | None:
    """Return the name of the torchvision transform that would leave a NumPy array untouched, or None.

    In a container the first transform counts, because it receives the array. The answer depends on the type alone, so
    transforms that act at random are found too.

    >>> find_array_ignoring_transform(print) is None
    True
    """
    cls = type(function)
    if not cls.__module__.startswith("torchvision.transforms"):
        return None
    if cls.__name__ in _CONTAINER_TRANSFORM_NAMES:
        return find_array_ignoring_transform(next(iter(function.transforms), None))
    return None if cls.__name__ in _ARRAY_TRANSFORM_NAMES else cls.__name__


def refuse_ignored_arrays(function: Any, values: Mapping[str, Any]) -> None:
    """Raise TypeError if `function` would leave the arrays among `values` untouched and has nothing else to work on."""
    arrays = [name for name, value in values.items() if isinstance(value, np.ndarray)]
    if not arrays or any(is_tensor(value) or is_pil_image(value) for value in values.values()):
        return
    transform = find_array_ignoring_transform(function)
    if transform is not None:
        names = ", ".join(f"`{name}`" for name in arrays)
        raise TypeError(
            f"{transform} leaves the NumPy array {names} untouched: torchvision's transforms work on tensors, "
            f"tv_tensors and PIL images; set `{format_setting('as', 'tensor')}` or `{format_setting('as', 'pil')}`"
        )
