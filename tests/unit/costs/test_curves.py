"""Cost curves: interpolation, the crossover of two curves, and the JSON form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.costs import CostCurve, CostCurves, find_crossover_bytes


@st.composite
def a_curve(draw):
    sizes = sorted(draw(st.sets(st.integers(64, 1 << 24), min_size=2, max_size=12)))
    quartiles = st.tuples(*[st.integers(1, 10**9)] * 3).map(sorted)
    return CostCurve.fit(sizes, [draw(quartiles) for _ in sizes])


@st.composite
def curves(draw):
    by_kind = {kind: draw(a_curve()) for kind in ("pipe", "copied", "cold", "loaned", "passed_on")}
    return CostCurves(**by_kind, extra_buffer_ns=(1, 2), timing_ns_per_hop=100, measured_at="2026-01-01")


@given(curves())
def test_curves_survive_json(original):
    assert CostCurves.from_dict(original.to_dict()) == original


@given(a_curve(), st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_more_bytes_never_cost_less(curve, one, other):
    small, large = sorted((one, other))
    assert curve(small) <= curve(large)


@given(a_curve(), st.integers(0, 1 << 24))
def test_the_cost_between_two_points_lies_between_theirs(curve, nbytes):
    if nbytes <= curve.sizes[-1]:
        assert min(curve.ns) <= curve(nbytes) <= max(curve.ns)


@given(a_curve())
def test_the_quartiles_enclose_the_median(curve):
    for low, middle, high in zip(curve.low_ns, curve.ns, curve.high_ns, strict=True):
        assert low <= middle <= high
    assert curve.relative_iqr >= 0


@given(a_curve(), a_curve())
def test_from_the_crossover_on_the_other_curve_is_not_dearer(pipe, other):
    crossover_bytes = find_crossover_bytes(pipe, other)
    ends = min(pipe.sizes[0], other.sizes[0]), max(pipe.sizes[-1], other.sizes[-1])
    assert ends[0] <= crossover_bytes <= ends[1]
    if crossover_bytes < ends[1]:
        assert all(other(size) <= pipe(size) for size in (*pipe.sizes, *other.sizes) if size >= crossover_bytes)


def test_the_last_line_continues_beyond_the_last_point():
    assert CostCurve.from_points((1000, 2000), (10, 30))(4000) == 70


def test_noise_does_not_make_a_larger_message_cheaper():
    curve = CostCurve.fit((1, 2, 3, 4), [(9, 9, 9), (5, 5, 5), (7, 7, 7), (20, 20, 20)])
    assert curve.ns == (7, 7, 7, 20)


GOOD = CostCurves.from_points((1, 2), (1, 2), (1, 2)).to_dict()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {**GOOD, "pipe": None},
        {**GOOD, "pipe": {"sizes": [1, 2]}},
        {**GOOD, "pipe": {"sizes": [1], "ns": [1], "low_ns": [1], "high_ns": [1]}},
        {**GOOD, "pipe": {"sizes": [2, 1], "ns": [1, 1], "low_ns": [1, 1], "high_ns": [1, 1]}},
        {**GOOD, "pipe": {"sizes": [1, 2], "ns": [1, 0], "low_ns": [1, 1], "high_ns": [1, 1]}},
        {**GOOD, "pipe": {"sizes": [1, 2], "ns": [1, 1, 1], "low_ns": [1, 1], "high_ns": [1, 1]}},
        {**GOOD, "extra_buffer_ns": [1]},
        {**GOOD, "measured_at": None, "timing_ns_per_hop": "x"},
    ],
)
def test_malformed_data_is_an_error(data):
    with pytest.raises((KeyError, TypeError, ValueError)):
        CostCurves.from_dict(data)
