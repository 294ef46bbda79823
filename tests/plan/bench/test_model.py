"""The crossover in words, whatever the curves look like."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.core import UsageError
from stagepipe.plan import Curves
from stagepipe.plan.bench import SIZES, Bench, Point, to_json
from stagepipe.plan.bench.model import check_file
from stagepipe.plan.bench.schedule import peer_points, sizes_for

SOME = (64, 4096, 65536)


def bench(pipe_ns, copied_ns):
    costs = {"pipe": pipe_ns, "copied": copied_ns}
    points = {
        name: tuple(Point(size, 5, ns, ns + 5_000, ns + 9_000) for size, ns in zip(SOME, found, strict=True))
        for name, found in costs.items()
    }
    return Bench(points, Curves.simple(SOME, pipe_ns, copied_ns), 5_000, 1.0, 2)


def test_the_crossover_names_figures_of_a_size_that_was_measured():
    assert bench((9_000, 90_000, 300_000), (24_000, 30_000, 45_000)).crossover == (
        "from 881 B up shared memory is cheaper: at 4.1 kB it takes 35 us, the pipe 95 us"
    )


def test_where_it_is_always_cheaper_or_never_the_words_say_so():
    always = bench((9_000, 90_000, 300_000), (1_000, 2_000, 3_000))
    assert always.crossover.startswith("at every size shared memory is cheaper")
    never = bench((1_000, 2_000, 3_000), (9_000, 90_000, 300_000))
    assert never.crossing_bytes is None
    assert never.crossover == "shared memory is not cheaper than the pipe up to 66 kB"


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=3, max_size=3))
def test_the_words_never_contradict_the_curves(costs):
    found = bench(*zip(*costs, strict=True))
    at = found.crossing_bytes
    if at is None:
        assert "not cheaper" in found.crossover
    else:
        assert found.curves.copied(at) <= found.curves.pipe(at)
    assert json.loads(to_json(found))["crossing_bytes"] == at


def test_no_two_sizes_share_a_number_of_binary_digits_with_their_head():
    heads = range(93, 200)  # of a packet: what a message of 64 B and one of 64 MB have beside the array
    for head in heads:
        bits = [(size + head).bit_length() for size in SIZES]
        assert len(set(bits)) == len(bits), head


def test_a_small_machine_measures_no_message_that_it_has_no_room_for():
    assert sizes_for(SIZES[-1], 64 << 30) == SIZES
    assert sizes_for(SIZES[-1], 1 << 30)[-1] == 16 << 20
    assert sizes_for(SIZES[-1], 1)[-1] == 1 << 20


def test_points_are_medians_and_quartiles_by_size():
    points = peer_points({4096: [40, 20, 30, 10, 50], 64: [7]})
    assert points == (Point(64, 1, 7, 7, 7), Point(4096, 5, 20, 30, 40))


def test_a_file_that_cannot_be_written_is_refused_before_the_measuring(tmp_path):
    check_file(None)
    check_file(tmp_path / "a.json")
    for path in (tmp_path, tmp_path / "missing" / "a.json"):
        with pytest.raises(UsageError, match="--json"):
            check_file(path)
