"""What travels: a dict {id, label, image}. How the receiver touches it, and the check that it arrived right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Item = dict[str, Any]
Image = NDArray[np.uint8]

SIZES = {"0B": 0, "1KB": 1024, "64KB": 64 << 10, "1.2MB": 3 * 224 * 224 * 8, "8MB": 8 << 20, "64MB": 64 << 20}
"""Bytes of the image. 1.2 MB is a (1, 3, 224, 224) array of float64. All are multiples of 8, for `touch`."""


def make_image(nbytes: int) -> Image:
    """uint8 of shape (nbytes,): the same random bytes on both sides."""
    return np.random.default_rng(17).integers(0, 256, nbytes, np.uint8)


def make_item(number: int, image: Any) -> Item:
    """Item `number`; its label follows from its number, so that a mix-up shows."""
    return {"id": number, "label": number % 1000, "image": image}


def as_array(image: Any) -> Image:
    """The image as an ndarray over the same bytes; a torch tensor is viewed."""
    return image if isinstance(image, np.ndarray) else np.asarray(image.numpy())


def touch(item: Item) -> None:
    """Read every byte once, eight at a time; NumPy's sum over uint64 runs at the speed of memory."""
    np.add.reduce(as_array(item["image"]).view(np.uint64))


def check(item: Item, expected: Image, number: int, *, filled: bool) -> None:
    """AssertionError unless this is item `number` and its image is right.

    `filled`: every byte is `expected`'s; else only the first byte was written, and it is the number's lowest.
    """
    image = as_array(item["image"])
    assert item["id"] == number, f"item {item['id']} came where {number} was due"
    assert item["label"] == number % 1000, f"item {number} came with label {item['label']}"
    assert image.dtype == np.uint8, f"item {number} came as {image.dtype}"
    assert image.shape == expected.shape, f"item {number} came with shape {image.shape}, not {expected.shape}"
    if filled:
        wrong = int(np.count_nonzero(image != expected))
        assert not wrong, f"item {number} came with {wrong} of {image.size} bytes wrong"
    elif image.size:
        assert image[0] == number & 0xFF, f"item {number} came with first byte {image[0]}, not {number & 0xFF}"


def spoiled(receive: Callable[[], Item]) -> Callable[[], Item]:
    """A receiver whose items have one byte wrong: what the check is for, in the check's own test."""

    def receive_spoiled() -> Item:
        item = receive()
        image = as_array(item["image"]).copy()
        image[:1] ^= 1
        return {**item, "image": image}

    return receive_spoiled
