"""The typical item of a hop, from probed items: sizes, modes and costs of each piece."""

import pytest

from stagepipe.costs import CostCurves
from stagepipe.forecast.payload import estimate_payload
from stagepipe.plan import HopPlan, ItemSample, PieceSample, ProbeResult
from stagepipe.transport import TransportRule

CURVES = CostCurves.from_points((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))


def hop(mode="auto", threshold_bytes=3500, **more):
    return HopPlan(
        source="decode",
        target="augment",
        rule=TransportRule(mode=mode, threshold_bytes=threshold_bytes, reason="measured", **more),
        capacity_packets=16,
    )


def image(nbytes, **more):
    return PieceSample(name="image", nbytes=nbytes, dtype="uint8", shape=(nbytes,), **more)


def probed(*items, pickle_bytes=90):
    return ProbeResult(items=tuple(ItemSample(pieces, pickle_bytes) for pieces in items))


def test_without_samples_there_is_no_payload():
    assert estimate_payload(hop(), ProbeResult(), CURVES) is None


def test_a_size_is_a_mean_with_its_range():
    payload = estimate_payload(hop(), probed((image(1000),), (image(3000),)), CURVES)
    [piece] = payload.pieces
    assert (piece.name, piece.mean_bytes, piece.min_bytes, piece.max_bytes) == ("image", 2000, 1000, 3000)
    assert piece.shape == (), "it varies from item to item"


@pytest.mark.parametrize(
    "nbytes, mode, expected",
    [(200_000, "auto", "shared_memory"), (2500, "auto", "pipe"), (2500, "shared_memory", None)],
)
def test_each_buffer_has_a_mode_and_a_cost_in_both_modes(nbytes, mode, expected):
    payload = estimate_payload(hop(mode, 1 if mode == "shared_memory" else 3500), probed((image(nbytes),)), CURVES)
    [piece] = payload.pieces
    assert piece.mode == (expected or mode)
    assert piece.pipe_ns > 0
    assert piece.shared_memory_ns > 0
    assert payload.decision.reason.startswith("image")


def test_a_buffer_in_an_arena_is_not_copied():
    [piece] = estimate_payload(hop(), probed((image(200_000, is_in_arena=True),)), CURVES).pieces
    assert piece.is_in_arena
    [copied] = estimate_payload(hop(), probed((image(200_000),)), CURVES).pieces
    assert piece.shared_memory_ns < copied.shared_memory_ns


def test_a_piece_inside_the_pickle_has_the_mode_pickle():
    label = PieceSample(name="label", nbytes=20, dtype="str", is_pickled=True)
    data = PieceSample(name="data", nbytes=25_000, dtype="bytes", is_pickled=True)
    box = PieceSample(name="box", nbytes=32, dtype="int64", shape=(4,), is_pickled=True)
    payload = estimate_payload(hop(), probed((label, data, box), pickle_bytes=25_100), CURVES)
    assert {piece.name: piece.mode for piece in payload.pieces} == {"data": "pickle", "box": "pickle"}, (
        "small strings are not listed"
    )
    assert payload.decision.pickle_mode == "shared_memory", "it does not fit a packet"
    small = estimate_payload(hop(), probed((label, box), pickle_bytes=120), CURVES)
    assert small.decision.pickle_mode == "pipe"


def test_pieces_of_the_same_name_are_numbered():
    payload = estimate_payload(hop(), probed((image(1000), image(9000))), CURVES)
    assert [(piece.name, piece.mean_bytes) for piece in payload.pieces] == [("image 2", 9000), ("image", 1000)]
