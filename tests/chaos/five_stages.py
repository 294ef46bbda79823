"""The stages of `hundred_kills`. Workers import them, so they are not in the script itself."""

from typing import Any

import numpy as np


def make_small(item: int) -> dict[str, int]:
    """Return a small item for a number."""
    return {"id": item, "value": item * item % 9973}


def increment(item: dict[str, Any]) -> dict[str, Any]:
    """Return a changed copy of the item."""
    return {**item, "value": item["value"] + 1}


def make_large(item: int) -> dict[str, Any]:
    """Return a dict with an image of 1.2 MB for a number."""
    return {"id": item, "value": item, "image": np.full((632, 632, 3), item % 251, np.uint8)}


def same(item: dict[str, Any]) -> dict[str, Any]:
    """Return the item unchanged."""
    return item
