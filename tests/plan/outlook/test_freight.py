"""What was seen on a hop becomes its typical item: sizes, modes and costs, piece by piece."""

import pytest

from stagepipe.plan.curves import Curves
from stagepipe.plan.model import HopPlan
from stagepipe.plan.outlook.freight import freight_of
from stagepipe.plan.outlook.glimpse import Glimpse, ItemSeen, PieceSeen

CURVES = Curves.simple((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))


def hop(mode="auto", threshold_bytes=3500, **more):
    return HopPlan("decode", "augment", mode, threshold_bytes, "measured", 16, **more)


def image(nbytes, **more):
    return PieceSeen("image", nbytes, "uint8", (nbytes,), **more)


def seen(*items, pickle_bytes=90):
    return Glimpse(tuple(ItemSeen(pieces, pickle_bytes) for pieces in items))


def test_nothing_seen_is_nothing_known():
    assert freight_of(hop(), Glimpse(), CURVES) is None


def test_a_size_is_the_mean_with_its_range():
    found = freight_of(hop(), seen((image(1000),), (image(3000),)), CURVES)
    [piece] = found.pieces
    assert (piece.name, piece.nbytes, piece.least_bytes, piece.most_bytes) == ("image", 2000, 1000, 3000)
    assert piece.shape == (), "it differs from item to item"


@pytest.mark.parametrize(
    "nbytes, mode, expected",
    [(200_000, "auto", "shared_memory"), (2500, "auto", "pipe"), (2500, "shared_memory", None)],
)
def test_each_buffer_has_its_mode_and_its_cost_in_either(nbytes, mode, expected):
    found = freight_of(hop(mode, 1 if mode == "shared_memory" else 3500), seen((image(nbytes),)), CURVES)
    [piece] = found.pieces
    assert piece.mode == (expected or mode)
    assert piece.alone.pipe_ns > 0
    assert piece.alone.shared_memory_ns > 0
    assert found.decision.reason.startswith("image")


def test_what_lies_in_an_arena_is_seen_to():
    [piece] = freight_of(hop(), seen((image(200_000, in_arena=True),)), CURVES).pieces
    assert piece.in_arena
    [copied] = freight_of(hop(), seen((image(200_000),)), CURVES).pieces
    assert piece.alone.shared_memory_ns < copied.alone.shared_memory_ns


def test_what_is_in_the_pickle_has_no_mode_of_its_own():
    label = PieceSeen("label", 20, "str", in_pickle=True)
    data = PieceSeen("data", 25_000, "bytes", in_pickle=True)
    box = PieceSeen("box", 32, "int64", (4,), in_pickle=True)
    found = freight_of(hop(), seen((label, data, box), pickle_bytes=25_100), CURVES)
    assert {piece.name: piece.mode for piece in found.pieces} == {"data": "pickle", "box": "pickle"}, "no small texts"
    assert found.pickle_mode == "shared_memory", "it does not fit a packet"
    small = freight_of(hop(), seen((label, box), pickle_bytes=120), CURVES)
    assert small.pickle_mode == "pipe"


def test_several_of_a_name_are_told_apart():
    found = freight_of(hop(), seen((image(1000), image(9000))), CURVES)
    assert [(piece.name, piece.nbytes) for piece in found.pieces] == [("image", 1000), ("image 2", 9000)]
