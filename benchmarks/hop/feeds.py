"""stagepipe's sources and its middle stage, which the config names by dotted path. They run in its workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

import stagepipe
from benchmarks.hop.payload import Image, Item, make_image, make_item


class Copied:
    """Yields the same prepared array every time; the transport copies it."""

    def __init__(self, nbytes: int) -> None:
        """Prepare an image of `nbytes` bytes."""
        self._image = make_image(nbytes)

    def __iter__(self) -> Iterator[Item]:
        """Yield items without end."""
        for number in count():
            yield make_item(number, self._image)


class Loaned:
    """Yields a new array in the outgoing shared memory for each item, and writes only its first byte."""

    def __init__(self, nbytes: int) -> None:
        """Yield images of `nbytes` bytes."""
        self._nbytes = nbytes

    def __iter__(self) -> Iterator[Item]:
        """Yield items without end. No reference to a yielded array remains, so its memory is sent without a copy."""
        for number in count():
            yield make_item(number, _empty_image(self._nbytes, number))


class Filled:
    """Yields a new array in the outgoing shared memory for each item, and copies a prepared one into it."""

    def __init__(self, nbytes: int) -> None:
        """Prepare an image of `nbytes` bytes."""
        self._image = make_image(nbytes)

    def __iter__(self) -> Iterator[Item]:
        """Yield items without end."""
        for number in count():
            yield make_item(number, _filled_image(self._image))


def _empty_image(nbytes: int, number: int) -> Image:
    image: Image = stagepipe.empty(nbytes, np.uint8)
    image[:1] = number & 0xFF
    return image


def _filled_image(source: Image) -> Image:
    image: Image = stagepipe.empty(source.shape, np.uint8)
    np.copyto(image, source)
    return image


def pass_on(item: Any) -> Any:
    """Return the item unchanged: the middle stage."""
    return item
