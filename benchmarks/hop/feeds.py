"""stagepipe's sources and its middle stage, which the config names by dotted path. They run in its workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

import stagepipe
from benchmarks.hop.payload import Image, Item, make_image, make_item


class Copied:
    """Yields the same prepared array every time; the transport copies it."""

    def __init__(self, nbytes: int) -> None:
        self._image = make_image(nbytes)

    def __iter__(self) -> Iterator[Item]:
        for number in count():
            yield make_item(number, self._image)


class HeaderOnly:
    """Yields a new array in the outgoing shared memory for each item, and writes only its first byte."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def __iter__(self) -> Iterator[Item]:
        """Yield items without end. No reference to a yielded array remains, so its memory is sent without a copy."""
        for number in count():
            yield make_item(number, _empty_image(self._nbytes, number))


class Filled:
    """Yields a new array in the outgoing shared memory for each item, and copies a prepared one into it."""

    def __init__(self, nbytes: int) -> None:
        self._image = make_image(nbytes)

    def __iter__(self) -> Iterator[Item]:
        for number in count():
            yield make_item(number, _filled_image(self._image))


DICTS = {"two numbers": {}, "two numbers, array of 0 B": {"image": np.zeros(0, np.uint8)}}
"""What the small dicts hold beside their numbers, by kind."""


class Dicts:
    """Yields small dicts."""

    def __init__(self, kind: str, count: int = sys.maxsize) -> None:
        self._rest: dict[str, Any] = DICTS[kind]
        self._count = count

    def __iter__(self) -> Iterator[Item]:
        for number in range(self._count):
            yield {"id": number, "label": number % 1000, **self._rest}


class PassOnBesideTorch:
    """Imports torch, or uses it too, and returns its items unchanged."""

    def __init__(self, *, used: bool) -> None:
        import torch

        if used:
            torch.zeros(1)

    def __call__(self, item: Item) -> Item:
        return item


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
