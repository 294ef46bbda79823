"""The batches of benchmarks.device. Imported by the workers of either contestant."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset


class Batches(IterableDataset[torch.Tensor]):
    """The same batch, `count` times an epoch."""

    def __init__(self, megabytes: int, count: int) -> None:
        """Yield `count` batches of `megabytes` MiB in each epoch."""
        self.megabytes, self.count = megabytes, count

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Prepare the batch once per epoch, before the first yield."""
        batch = torch.ones(self.megabytes * (1 << 20) // 4)
        for _ in range(self.count):
            yield batch
