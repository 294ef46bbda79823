"""The source and the stages of `small_items_stage.py`, for the workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Dicts:
    """A source of small dicts."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the dicts."""
        for number in range(self._count):
            yield {"id": number, "label": number % 10, "name": "x"}


def keep(item: Any) -> Any:
    """Return the item."""
    return item


class KeepBesideTorch:
    """Imports torch, does not use it and keeps the items."""

    def __init__(self) -> None:
        import torch  # noqa: F401 - what is measured

    def __call__(self, item: Any) -> Any:
        """Return the item."""
        return item


class KeepWithTorch:
    """Imports torch, uses it and keeps the items."""

    def __init__(self) -> None:
        import torch

        torch.zeros(1)

    def __call__(self, item: Any) -> Any:
        """Return the item."""
        return item
