"""Cost curves and the choice that is made from them, whatever they look like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.plan import Curves, explain, negotiate
from stagepipe.plan.negotiator import FITS_BYTES


@st.composite
def curves(draw):
    sizes = sorted(draw(st.sets(st.integers(64, 1 << 24), min_size=2, max_size=12)))
    costs = st.lists(st.integers(1, 10**9), min_size=len(sizes), max_size=len(sizes))
    return Curves(tuple(sizes), tuple(draw(costs)), tuple(draw(costs)), 100, "2026-01-01")


@given(curves())
def test_curves_survive_json(found):
    assert Curves.from_plain(found.to_plain()) == found


@given(curves(), st.integers(0, 1 << 30))
def test_between_two_points_the_cost_lies_between_theirs(found, nbytes):
    cost = found.pipe(nbytes)
    if nbytes <= found.sizes[-1]:
        assert min(found.pipe_ns) - 1 <= cost <= max(found.pipe_ns) + 1


@given(curves())
def test_from_the_crossing_on_shared_memory_is_not_dearer(found):
    at = found.crossing_bytes()
    assert found.sizes[0] <= at <= found.sizes[-1]
    if at < found.sizes[-1]:
        for size in found.sizes:
            if size > at * 1.1:
                assert found.shared_memory(size) <= found.pipe(size) * 1.1 or size - at < (found.sizes[-1] / 50)


@given(curves(), st.sampled_from(["auto", "pipe", "shared_memory"]), st.none() | st.integers(0, 1 << 40),
       st.tuples(st.integers(1, 64), st.integers(1, 64)))  # fmt: skip
def test_every_choice_obeys_the_mode_and_says_why(found, mode, threshold, workers):
    choice = negotiate(mode, threshold, workers, found)
    assert choice.mode == mode
    assert choice.reason
    assert choice.threshold_bytes >= 1
    assert choice.large_in_pipe == (mode == "pipe" and workers == (1, 1))
    if mode == "auto" and threshold is None:
        assert choice.threshold_bytes <= FITS_BYTES
    assert explain(choice.reason, mode, 1_200_000, found)


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"sizes": [1, 2]},
        {"sizes": [1], "pipe_ns": [1], "shared_memory_ns": [1], "timing_ns_per_hop": 1, "when": ""},
        {"sizes": [2, 1], "pipe_ns": [1, 2], "shared_memory_ns": [1, 2], "timing_ns_per_hop": 1, "when": ""},
        {"sizes": [1, 2], "pipe_ns": [1], "shared_memory_ns": [1, 2], "timing_ns_per_hop": 1, "when": ""},
        {"sizes": "no", "pipe_ns": None, "shared_memory_ns": [1, 2], "timing_ns_per_hop": 1, "when": ""},
    ],
)
def test_what_is_no_curve_is_refused(plain):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Curves.from_plain(plain)
