"""The length of an item, or of one of its fields, for stages that sort by it. Runs where the stage does."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from stagepipe.core import MissingFieldError, list_fields


def measure_length(item: Any, field: str | None, stage: str) -> int:
    """Return `len` of an item or of its `field`; an integer is a length itself.

    >>> measure_length({"text": "abc"}, "text", "Bucket"), measure_length({"tokens": 7}, "tokens", "Bucket")
    (3, 7)

    Raises KeyError if there is no such field, and TypeError for what has no length.
    """
    value = item
    if field is not None:
        if not isinstance(item, Mapping):
            raise TypeError(f"{stage}: the field `{field}` needs a dict item, but this one is a {type(item).__name__}")
        if field not in item:
            raise MissingFieldError(f"{stage}: the item has no field `{field}`; it has {list_fields(item)}")
        value = item[field]
    if field is None and isinstance(value, Mapping):
        raise TypeError(f"{stage}: the item is a dict; name the field that has the length in `field`")
    try:
        return operator.index(value) if isinstance(value, int | np.integer) else len(value)
    except TypeError:
        place = f"`{field}`" if field is not None else "the item"
        raise TypeError(
            f"{stage}: {place} is of type {type(value).__name__}, which has no length; give an array, a list, a text "
            "or the length as a number"
        ) from None
