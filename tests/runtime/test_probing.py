"""What a probe tells of an item: each piece by its path, its size, where it lies; and it holds nothing of it."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from stagepipe.runtime.probing import look
from stagepipe.transport import Policy
from stagepipe.transport.codec import Encoder
from tests.transport.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop(Policy(2048))
    with made.stack:
        yield made


@pytest.fixture
def encoder(loop):
    return Encoder(loop.before, 2048)


@dataclass
class Sample:
    image: np.ndarray
    label: str


class Pair(NamedTuple):
    left: np.ndarray
    right: float


def names(item, encoder):
    return {piece.name: piece.nbytes for piece in look(item, encoder).buffers}


def test_pieces_go_by_their_path(encoder):
    item = {
        "image": np.zeros((30, 40, 3), np.uint8),
        "meta": {"box": np.zeros(4), "id": 7, "none": None},
        "more": [np.zeros(5000, np.uint8), torch.zeros(2000)],
        "sample": Sample(np.zeros(4000, np.uint8), "cat"),
        "pair": Pair(np.zeros(3000, np.uint8), 1.0),
    }
    assert names(item, encoder) == {
        "image": 3600,
        "meta.box": 32,
        "more[0]": 5000,
        "more[1]": 8000,
        "sample.image": 4000,
        "sample.label": 3,
        "pair.left": 3000,
    }


def test_an_array_is_told_with_its_form_and_whether_it_has_a_buffer(encoder):
    seen = look({"image": np.zeros((30, 40, 3), np.uint8), "box": np.zeros(4, np.float32)}, encoder)
    image, box = seen.buffers
    assert (image.dtype, image.shape, image.in_pickle) == ("uint8", (30, 40, 3), False)
    assert (box.dtype, box.shape, box.in_pickle) == ("float32", (4,), True)
    assert 0 < seen.pickle_bytes < 400


@pytest.mark.parametrize(
    "value, dtype, nbytes",
    [
        (torch.zeros(3, 50, 50), "float32", 30_000),
        (Image.new("RGB", (50, 40)), "PIL RGB", 6000),
        (np.zeros((100, 100))[::2], "float64", 40_000),
        (b"x" * 9000, "bytes", 9000),
    ],
    ids=["tensor", "image", "strided", "bytes"],
)
def test_an_item_that_is_one_piece_is_called_item(encoder, value, dtype, nbytes):
    [piece] = look(value, encoder).buffers
    assert (piece.name, piece.dtype, piece.nbytes) == ("item", dtype, nbytes)


def test_texts_in_a_list_are_one_piece(encoder):
    assert list(names({"label": ["cat"] * 1000, "x": np.zeros(9000, np.uint8)}, encoder)) == ["label", "x"]


def test_what_is_there_twice_is_told_once(encoder):
    array = np.zeros(9000, np.uint8)
    assert names({"a": array, "b": array}, encoder) == {"a": 9000}


def test_what_lies_in_an_arena_is_told_so(encoder, loop):
    lease = loop.before.loan(9000)
    [piece] = look({"x": np.ndarray((9000,), np.uint8, lease)}, encoder).buffers
    assert piece.in_arena


def test_of_very_many_pieces_the_sizes_are_told(encoder):
    seen = look([np.zeros(3000 + number, np.uint8) for number in range(100)], encoder)
    assert [piece.name for piece in seen.buffers] == ["item"] * 100
    assert sum(piece.nbytes for piece in seen.buffers) == 100 * 3000 + 99 * 50


def test_nothing_of_an_item_is_held(encoder):
    array = np.zeros(9000, np.uint8)
    gone = weakref.ref(array)
    look({"x": array}, encoder)
    del array
    gc.collect()
    assert gone() is None


def test_what_cannot_be_pickled_raises_and_leaves_nothing(encoder):
    with pytest.raises(Exception, match="pickle"):
        look({"x": np.zeros(9000), "f": lambda: 0}, encoder)
    assert not encoder.buffers
