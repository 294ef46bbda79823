"""stagepipe's sources and its middle stage, named by dotted path in the config: what runs in its workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

import stagepipe
from hop_.payload import Image, Item, make_image, make_item


class Copied:
    """The same prepared array over and over; the transport copies it."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes` of image."""
        self._image = make_image(nbytes)

    def __iter__(self) -> Iterator[Item]:
        """Without an end."""
        for number in count():
            yield make_item(number, self._image)


class Loaned:
    """A new array in the outgoing shared memory for each item, of which only the first byte is written."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes` of image."""
        self._nbytes = nbytes

    def __iter__(self) -> Iterator[Item]:
        """Without an end. Nobody holds the array when it is yielded, so it is handed over."""
        for number in count():
            yield make_item(number, _begun(self._nbytes, number))


class Filled:
    """A new array in the outgoing shared memory for each item, filled from a prepared one by the producer."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes` of image."""
        self._image = make_image(nbytes)

    def __iter__(self) -> Iterator[Item]:
        """Without an end."""
        for number in count():
            yield make_item(number, _filled(self._image))


def _begun(nbytes: int, number: int) -> Image:
    image: Image = stagepipe.empty(nbytes, np.uint8)
    image[:1] = number & 0xFF
    return image


def _filled(source: Image) -> Image:
    image: Image = stagepipe.empty(source.shape, np.uint8)
    np.copyto(image, source)
    return image


def pass_on(item: Any) -> Any:
    """The middle stage: what it got, as it is."""
    return item
