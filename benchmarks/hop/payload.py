"""The payload: a dict {id, label, image}, how the receiver touches it, and the check of what arrived.

Both sides use it.
"""

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
    """Create a uint8 image of shape (nbytes,): the same random bytes on both sides."""
    return np.random.default_rng(17).integers(0, 256, nbytes, np.uint8)


def make_item(number: int, image: Any) -> Item:
    """Create item `number`. Its label follows from its number, so that a mix-up shows."""
    return {"id": number, "label": number % 1000, "image": image}


def as_array(image: Any) -> Image:
    """Return the image as an ndarray over the same bytes, also for a torch tensor."""
    return image if isinstance(image, np.ndarray) else np.asarray(image.numpy())


def touch(item: Item) -> None:
    """Read every byte once, eight at a time: NumPy's sum over uint64 runs at the speed of memory."""
    np.sum(as_array(item["image"]).view(np.uint64))


def check(item: Item, expected: Image, number: int, *, filled: bool) -> None:
    """Raise AssertionError unless this is item `number` and its image is right.

    If `filled`, every byte must equal that of `expected`. Otherwise only the first byte was written: the lowest byte of
    the number.
    """
    image = as_array(item["image"])
    assert item["id"] == number, f"received item {item['id']}, expected item {number}"
    assert item["label"] == number % 1000, f"item {number} has label {item['label']}, expected {number % 1000}"
    assert image.dtype == np.uint8, f"item {number} has dtype {image.dtype}, expected uint8"
    assert image.shape == expected.shape, f"item {number} has shape {image.shape}, expected {expected.shape}"
    if filled:
        wrong = int(np.count_nonzero(image != expected))
        assert not wrong, f"item {number} has {wrong} of {image.size} bytes wrong"
    elif image.size:
        assert image[0] == number & 0xFF, f"item {number} starts with byte {image[0]}, expected {number & 0xFF}"


def spoiled(receive: Callable[[], Item]) -> Callable[[], Item]:
    """Corrupt one byte of each received item, for the test of the check."""

    def receive_spoiled() -> Item:
        item = receive()
        image = as_array(item["image"]).copy()
        image[:1] ^= 1
        return {**item, "image": image}

    return receive_spoiled
