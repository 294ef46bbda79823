"""Parts that run in workers and import torch at the top of their module: a stage, and a dataset of DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset


def add_zero(number: int) -> int:
    """Return the number, through torch."""
    return int(torch.tensor(number).add_(0))


class Stream(IterableDataset[Any]):
    """Yields the items of `make_items()`. Small when pickled, because DataLoader's worker makes the items."""

    def __init__(self, make_items: Callable[[], Iterable[Any]]) -> None:
        self._make_items = make_items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make_items())
