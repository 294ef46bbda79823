"""DataLoader's dataset, which runs in its worker. This is the only module here that imports torch at the top."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from torch.utils.data import IterableDataset

from benchmarks.hop.payload import Item, make_image, make_item


class Stream(IterableDataset[Item]):
    """Yields the same prepared array every time, without end."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def __iter__(self) -> Iterator[Item]:
        """Prepare the image and yield items without end; the worker calls this once."""
        image = make_image(self._nbytes)
        for number in count():
            yield make_item(number, image)
