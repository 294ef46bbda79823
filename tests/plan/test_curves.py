"""Cost curves: lines between points, where two of them cross, and what survives JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.plan import Curves
from stagepipe.plan.curves import Curve, crossing_bytes


@st.composite
def a_curve(draw):
    sizes = sorted(draw(st.sets(st.integers(64, 1 << 24), min_size=2, max_size=12)))
    quartiles = st.tuples(*[st.integers(1, 10**9)] * 3).map(sorted)
    return Curve.fitted(sizes, [draw(quartiles) for _ in sizes])


@st.composite
def curves(draw):
    return Curves(*(draw(a_curve()) for _ in range(5)), further_ns=(1, 2), timing_ns_per_hop=100, when="2026-01-01")


@given(curves())
def test_curves_survive_json(found):
    assert Curves.from_plain(found.to_plain()) == found


@given(a_curve(), st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_more_bytes_never_cost_less(curve, one, other):
    small, large = sorted((one, other))
    assert curve(small) <= curve(large)


@given(a_curve(), st.integers(0, 1 << 24))
def test_between_two_points_the_cost_lies_between_theirs(curve, nbytes):
    if nbytes <= curve.sizes[-1]:
        assert min(curve.ns) <= curve(nbytes) <= max(curve.ns)


@given(a_curve())
def test_the_quartiles_enclose_the_median(curve):
    for low, middle, high in zip(curve.low_ns, curve.ns, curve.high_ns, strict=True):
        assert low <= middle <= high
    assert curve.spread >= 0


@given(a_curve(), a_curve())
def test_from_the_crossing_on_the_other_is_not_dearer(pipe, other):
    at = crossing_bytes(pipe, other)
    ends = min(pipe.sizes[0], other.sizes[0]), max(pipe.sizes[-1], other.sizes[-1])
    assert ends[0] <= at <= ends[1]
    if at < ends[1]:
        assert all(other(size) <= pipe(size) for size in (*pipe.sizes, *other.sizes) if size >= at)


def test_beyond_the_last_point_the_last_line_goes_on():
    assert Curve.through((1000, 2000), (10, 30))(4000) == 70


def test_noise_does_not_make_a_larger_message_cheaper():
    curve = Curve.fitted((1, 2, 3, 4), [(9, 9, 9), (5, 5, 5), (7, 7, 7), (20, 20, 20)])
    assert curve.ns == (7, 7, 7, 20)


GOOD = Curves.simple((1, 2), (1, 2), (1, 2)).to_plain()


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {**GOOD, "pipe": None},
        {**GOOD, "pipe": {"sizes": [1, 2]}},
        {**GOOD, "pipe": {"sizes": [1], "ns": [1], "low_ns": [1], "high_ns": [1]}},
        {**GOOD, "pipe": {"sizes": [2, 1], "ns": [1, 1], "low_ns": [1, 1], "high_ns": [1, 1]}},
        {**GOOD, "pipe": {"sizes": [1, 2], "ns": [1, 0], "low_ns": [1, 1], "high_ns": [1, 1]}},
        {**GOOD, "pipe": {"sizes": [1, 2], "ns": [1, 1, 1], "low_ns": [1, 1], "high_ns": [1, 1]}},
        {**GOOD, "further_ns": [1]},
        {**GOOD, "when": None, "timing_ns_per_hop": "x"},
    ],
)
def test_what_is_no_curves_is_an_error(plain):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Curves.from_plain(plain)
