"""A probe reports the path, size and place of each piece of an item, and keeps no reference to the item."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from stagepipe.runtime.worker.hop_output import measure_item
from stagepipe.transport import Encoder, TransportRule
from tests.support.transport.hops import LoopbackHop


@pytest.fixture
def loop() -> Iterator[LoopbackHop]:
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        yield loop


@pytest.fixture
def encoder(loop):
    return Encoder(loop.sender_pool, 2048)


@dataclass
class Sample:
    image: np.ndarray
    label: str


class Pair(NamedTuple):
    left: np.ndarray
    right: float


def names(item, encoder):
    return {piece.name: piece.nbytes for piece in measure_item(item, encoder).pieces}


def test_pieces_are_named_by_their_path(encoder):
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


def test_an_array_is_reported_with_dtype_shape_and_whether_it_has_a_buffer(encoder):
    sample = measure_item({"image": np.zeros((30, 40, 3), np.uint8), "box": np.zeros(4, np.float32)}, encoder)
    image, box = sample.pieces
    assert (image.dtype, image.shape, image.is_pickled) == ("uint8", (30, 40, 3), False)
    assert (box.dtype, box.shape, box.is_pickled) == ("float32", (4,), True)
    assert 0 < sample.pickle_bytes < 400


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
def test_an_item_of_one_piece_is_named_item(encoder, value, dtype, nbytes):
    [piece] = measure_item(value, encoder).pieces
    assert (piece.name, piece.dtype, piece.nbytes) == ("item", dtype, nbytes)


def test_strings_in_a_list_are_one_piece(encoder):
    assert list(names({"label": ["cat"] * 1000, "x": np.zeros(9000, np.uint8)}, encoder)) == ["label", "x"]


def test_a_value_that_occurs_twice_is_reported_once(encoder):
    array = np.zeros(9000, np.uint8)
    assert names({"a": array, "b": array}, encoder) == {"a": 9000}


def test_a_piece_in_an_arena_is_marked(encoder, loop):
    lease = loop.sender_pool.loan(9000)
    [piece] = measure_item({"x": np.ndarray((9000,), np.uint8, lease)}, encoder).pieces
    assert piece.is_in_arena


def test_very_many_pieces_are_reported_only_by_size(encoder):
    sample = measure_item([np.zeros(3000 + number, np.uint8) for number in range(100)], encoder)
    assert [piece.name for piece in sample.pieces] == ["item"] * 100
    assert sum(piece.nbytes for piece in sample.pieces) == 100 * 3000 + 99 * 50


def test_a_measured_item_is_not_kept_alive(encoder):
    array = np.zeros(9000, np.uint8)
    reference = weakref.ref(array)
    measure_item({"x": array}, encoder)
    del array
    gc.collect()
    assert reference() is None


def test_an_unpicklable_item_raises_and_leaves_the_encoder_empty(encoder):
    with pytest.raises(Exception, match="local object"):
        measure_item({"x": np.zeros(9000), "f": lambda: 0}, encoder)
    assert not encoder.buffers
