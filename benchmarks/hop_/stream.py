"""The DataLoader's dataset, in its worker. The one module here that imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from torch.utils.data import IterableDataset

from hop_.payload import Item, make_image, make_item


class Stream(IterableDataset[Item]):
    """The same prepared array over and over, without an end."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes` of image."""
        self._nbytes = nbytes

    def __iter__(self) -> Iterator[Item]:
        """Begun once, in the worker."""
        image = make_image(self._nbytes)
        for number in count():
            yield make_item(number, image)
