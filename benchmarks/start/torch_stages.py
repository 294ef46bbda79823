"""A stage that uses torch, as its module says at its top. It runs in stagepipe's workers."""

from __future__ import annotations

import torch


def with_torch(item: int) -> int:
    """Return the item, through torch."""
    return int(torch.tensor(item).add_(0))
