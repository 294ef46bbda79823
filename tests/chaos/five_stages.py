"""The stages of `hundred_kills`: imported by workers, so not in the script itself."""

from typing import Any

import numpy as np


def small(item: int) -> dict[str, int]:
    """A small item from its number."""
    return {"id": item, "value": item * item % 9973}


def more(item: dict[str, Any]) -> dict[str, Any]:
    """A changed copy of it."""
    return {**item, "value": item["value"] + 1}


def large(item: int) -> dict[str, Any]:
    """A dict with an image of 1.2 MB from its number."""
    return {"id": item, "value": item, "image": np.full((632, 632, 3), item % 251, np.uint8)}


def passed_on(item: dict[str, Any]) -> dict[str, Any]:
    """The item as it came."""
    return item
