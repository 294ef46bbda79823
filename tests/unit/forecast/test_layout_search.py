"""The layout with the best rate within the CPUs and the memory; then the least CPU time, then the fewest processes."""

import itertools
import random
from dataclasses import replace

import pytest

from stagepipe.forecast import ProcessChoice, choose_layout
from stagepipe.forecast.layout import (
    FusedGroup,
    compute_memory_bytes,
    count_max_workers,
    fits_in_memory,
    predict_throughput,
)
from stagepipe.spec import WorkerRange
from tests.unit.forecast.chains import MB, batch, budget, chain, process

SECOND_NS = 10**9


def choose(costs, *, workers=None, may_fuse=True, **machine):
    """Choose with all processes open, or with these `workers` (None: open); as (first process, last, workers)."""
    count = len(costs.processes)
    choices = [ProcessChoice(given, may_fuse=may_fuse) for given in workers or [None] * count]
    layout = choose_layout(costs, choices, budget(**machine))
    return [(group.first_process, group.last_process, group.workers) for group in layout]


def images(**decode):
    """JPEGs to float32 batches: reading, decoding, resizing, conversion, stacking."""
    decode_cost = process("decode", 1800, **decode)
    return chain(
        process("source", 100), decode_cost, process("resize", 300), process("float", 200), batch(200), hop_us=80
    )


@pytest.mark.parametrize(
    "cpus, layout",
    [
        (1, [(0, 3, 1), (4, 4, 1)]),
        (2, [(0, 0, 1), (1, 3, 2), (4, 4, 1)]),
        (4, [(0, 0, 1), (1, 3, 4), (4, 4, 1)]),
    ],
)
def test_a_full_machine_gets_one_process_for_all_stages_and_as_many_of_them_as_cpus(cpus, layout):
    assert choose(images(), cpus=cpus) == layout


def test_without_fusing_each_stage_has_the_workers_that_it_needs():
    costs = chain(process("source", 200), process("decode", 1000), process("crop", 100), batch())
    assert choose(costs, may_fuse=False) == [(0, 0, 1), (1, 1, 6), (2, 2, 1), (3, 3, 1)]


@pytest.mark.parametrize(
    "least, most, workers", [(1, 64, 6), (1, 4, 4), (8, 64, 8), (100, 200, 100), (1, 6, 6)], ids=str
)
def test_a_range_bounds_the_choice(least, most, workers):
    costs = chain(process("source", 200), process("decode", 1000), process("crop", 100), batch())
    layout = choose(costs, workers=[1, WorkerRange(least, most), None, 1], may_fuse=False)
    assert layout[1] == (1, 1, workers)


def test_several_workers_at_the_least_leave_a_stage_that_has_one_outside():
    decode = process("decode", 10, unfusable_reason="it takes lists")
    costs = chain(process("source", 1), decode, process("count", 1, is_single_worker=True), batch())
    assert (1, 1, 2) in choose(costs, workers=[1, WorkerRange(2, 4), None, 1])


@pytest.mark.parametrize("dataset_us, batch_us, workers", [(18, 14, 1), (40, 14, 2), (1800, 1400, 2)])
def test_a_second_worker_of_a_quick_stage_must_pay_for_sharing_the_items(dataset_us, batch_us, workers):
    costs = chain(process("source", 0), process("dataset", dataset_us), batch(batch_us), hop_us=0)
    assert choose(costs, cpus=2, may_fuse=False)[1] == (1, 1, workers)


def test_given_workers_are_kept_unless_their_stage_is_fused():
    costs = chain(process("source", 100), process("decode", 1000), process("crop", 1000), batch(), hop_us=0)
    assert choose(costs, workers=[1, None, 3, 1], may_fuse=False) == [(0, 0, 1), (1, 1, 4), (2, 2, 3), (3, 3, 1)]
    assert choose(costs, workers=[1, None, 3, 1]) != choose(costs, workers=[1, None, 3, 1], may_fuse=False)


def test_a_slow_consumer_leaves_all_stages_in_one_process():
    costs = replace(images(), sink_ns=10_000_000)
    assert choose(costs, cpus=8) == [(0, 3, 1), (4, 4, 1)]


def test_a_share_of_a_cpu_counts_as_one_but_a_busy_machine_gets_one_worker():
    assert choose(images(), cpus=1.3, machine_cpus=2) == choose(images(), cpus=2)
    assert choose(images(), cpus=1.05, machine_cpus=2) == choose(images(), cpus=1)


def test_a_stage_that_waits_gets_more_workers_than_cpus():
    costs = chain(process("source", 10), process("fetch", 50_000, cpu_us=100), batch(), hop_us=0)
    assert choose(costs, cpus=2) == [(0, 0, 1), (1, 1, 8), (2, 2, 1)]


def test_a_gpu_gets_one_worker():
    costs = chain(process("source", 10), process("model", 9000, cpu_us=100, gpus_per_worker=1), batch())
    assert choose(costs, cpus=16, gpus=2, may_fuse=False)[1] == (1, 1, 2)
    costs = chain(process("source", 10), process("model", 9000, cpu_us=100, gpus_per_worker=4), batch())
    assert choose(costs, cpus=16, gpus=8, may_fuse=False)[1] == (1, 1, 2)


def test_models_are_loaded_once_where_a_second_time_does_not_pay():
    model = {"start_ns": 4 * SECOND_NS, "memory_bytes": 450 * MB}
    models = [process(name, 10_000, **model) for name in ("detect", "embed", "rank")]
    costs = chain(process("source", 20), *models, hop_us=100)
    assert choose(costs, cpus=3) == [(0, 1, 1), (2, 2, 1), (3, 3, 1)]
    light = [replace(model, start_ns=0.0, memory_bytes=50 * MB) for model in models]
    assert choose(chain(process("source", 20), *light, hop_us=100), cpus=3) == [(0, 1, 1), (2, 3, 2)]


def test_memory_limits_the_workers():
    costs = chain(process("source", 10), process("decode", 1000, memory_bytes=2000 * MB), batch(), hop_us=0)
    assert choose(costs, cpus=8, memory_mb=10_000, arena_mb=2500)[1] == (1, 1, 3)
    assert choose(costs, cpus=8, memory_mb=1000) == [(0, 1, 1), (2, 2, 1)]


def test_a_stage_that_needs_its_own_process_is_not_fused():
    costs = chain(process("source", 5), process("split", 5, unfusable_reason="it sets `env`"), batch(5), hop_us=200)
    assert choose(costs, cpus=1) == [(0, 0, 1), (1, 1, 1), (2, 2, 1)]


def test_a_stateful_stage_has_one_worker_even_among_other_stages():
    costs = chain(process("source", 5), process("a", 500, is_single_worker=True), process("b", 500), batch())
    for first, last, workers in choose(costs, cpus=8):
        assert workers == 1 or not first <= 1 <= last


def test_the_choice_is_as_good_as_the_best_of_all_layouts():
    rng = random.Random(15)
    for _ in range(40):
        costs = random_chain(rng)
        machine = {"cpus": rng.choice([1, 2, 3, 4]), "memory_mb": rng.choice([16_000, 900]), "arena_mb": 100}
        chosen = tuple(FusedGroup(*group) for group in choose(costs, **machine))
        rate = predict_throughput(chosen, costs, machine["cpus"]).items_per_s
        layouts = list(all_layouts(costs, budget(**machine)))
        best = max((predict_throughput(layout, costs, machine["cpus"]).items_per_s for layout in layouts), default=0)
        assert rate >= 0.93 * best
        assert not layouts or fits_in_memory(chosen, costs, budget(**machine))


def random_chain(rng):
    stages = [
        process(
            name,
            rng.choice([5, 80, 300, 1000]),
            memory_bytes=rng.choice([50, 50, 200]) * MB,
            unfusable_reason=rng.choice(["", "", "", "it sets `env`"]),
        )
        for name in "abc"
    ]
    return chain(process("source", rng.choice([5, 100, 400])), *stages, batch(), hop_us=rng.choice([5, 60, 300]))


def all_layouts(costs, limits):
    """Each way to cut the chain, with each number of workers up to the number of CPUs, within the memory."""
    count = len(costs.processes)
    for cuts in itertools.product((False, True), repeat=count - 1):
        if any(not cut and costs.processes[index].unfusable_reason for index, cut in enumerate(cuts, 1)):
            continue
        starts = [0, *(index for index, cut in enumerate(cuts, 1) if cut), count]
        groups = [FusedGroup(first, last - 1) for first, last in itertools.pairwise(starts)]
        options = [range(1, min(count_max_workers(group, costs, limits), 4) + 1) for group in groups]
        for workers in itertools.product(*options):
            layout = tuple(replace(group, workers=number) for group, number in zip(groups, workers, strict=True))
            if fits_in_memory(layout, costs, limits):
                yield layout


def test_a_group_counts_python_once_and_the_memory_of_each_member():
    costs = chain(process("source", 1), process("a", 1, memory_bytes=450 * MB), process("b", 1, memory_bytes=250 * MB))
    assert compute_memory_bytes(FusedGroup(1, 2, 2), costs) == 2 * (50 + 400 + 200) * MB
