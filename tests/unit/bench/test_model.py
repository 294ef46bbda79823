"""The crossover sentence, the measured sizes and the points of a bench, for any curves."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.bench import check_output_path, to_json
from stagepipe.bench.measuring import choose_sizes_bytes, make_peer_points
from stagepipe.bench.result import BENCH_SIZES_BYTES, BenchResult, CostPoint
from stagepipe.core import UsageError
from stagepipe.costs import CostCurves

SIZES_BYTES = (64, 4096, 65536)


def bench(pipe_ns, copied_ns):
    costs = {"pipe": pipe_ns, "copied": copied_ns}
    points = {
        name: tuple(
            CostPoint(nbytes=size, count=5, low_ns=ns, ns=ns + 5_000, high_ns=ns + 9_000)
            for size, ns in zip(SIZES_BYTES, costs_ns, strict=True)
        )
        for name, costs_ns in costs.items()
    }
    return BenchResult(
        points=points,
        curves=CostCurves.from_points(SIZES_BYTES, pipe_ns, copied_ns),
        serialization_ns=5_000,
        duration_s=1.0,
        rounds=2,
    )


def test_the_crossover_names_the_costs_of_a_measured_size():
    assert bench((9_000, 90_000, 300_000), (24_000, 30_000, 45_000)).crossover_summary == (
        "shared memory is cheaper from 881 B up: at 4.1 kB it takes 35 µs, the pipe 95 µs"
    )


def test_the_crossover_says_if_shared_memory_is_always_or_never_cheaper():
    always = bench((9_000, 90_000, 300_000), (1_000, 2_000, 3_000))
    assert always.crossover_summary.startswith("shared memory is cheaper at every size")
    never = bench((1_000, 2_000, 3_000), (9_000, 90_000, 300_000))
    assert never.crossover_bytes is None
    assert never.crossover_summary == "shared memory is not cheaper than the pipe up to 66 kB"


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=3, max_size=3))
def test_the_crossover_agrees_with_the_curves(costs):
    result = bench(*zip(*costs, strict=True))
    crossover_bytes = result.crossover_bytes
    if crossover_bytes is None:
        assert "not cheaper" in result.crossover_summary
    else:
        assert result.curves.copied(crossover_bytes) <= result.curves.pipe(crossover_bytes)
    assert json.loads(to_json(result))["crossover_bytes"] == crossover_bytes


def test_no_two_sizes_with_their_headers_have_the_same_bit_length():
    header_sizes_bytes = range(93, 200)  # the bytes beside the array in messages of 64 B to 64 MB
    for header_bytes in header_sizes_bytes:
        bit_lengths = [(size + header_bytes).bit_length() for size in BENCH_SIZES_BYTES]
        assert len(set(bit_lengths)) == len(bit_lengths), header_bytes


def test_a_small_machine_measures_only_messages_that_fit_its_memory():
    assert choose_sizes_bytes(BENCH_SIZES_BYTES[-1], 64 << 30) == BENCH_SIZES_BYTES
    assert choose_sizes_bytes(BENCH_SIZES_BYTES[-1], 1 << 30)[-1] == 16 << 20
    assert choose_sizes_bytes(BENCH_SIZES_BYTES[-1], 1)[-1] == 1 << 20


def test_points_are_medians_and_quartiles_by_size():
    points = make_peer_points({4096: [40, 20, 30, 10, 50], 64: [7]})
    assert points == (
        CostPoint(nbytes=64, count=1, low_ns=7, ns=7, high_ns=7),
        CostPoint(nbytes=4096, count=5, low_ns=20, ns=30, high_ns=40),
    )


def test_a_path_that_cannot_be_written_is_refused_before_measuring(tmp_path):
    check_output_path(None)
    check_output_path(tmp_path / "a.json")
    for path in (tmp_path, tmp_path / "missing" / "a.json"):
        with pytest.raises(UsageError, match="--json"):
            check_output_path(path)


@pytest.mark.parametrize("load_average, is_busy", [(0.3, False), (2.0, False), (12.0, True)])
def test_a_busy_machine_is_named(load_average, is_busy):
    result = replace(bench((1, 2, 3), (1, 2, 3)), host={"cpus": 2}, load_average=load_average)
    assert ("load average 12.0 on 2 CPUs" in result.busy_warning) == is_busy
    assert bool(result.busy_warning) == is_busy
