"""The policy that adds and retires workers, in simulated runs: see `scaling_simulator`."""

import random
from itertools import pairwise

import pytest

from tests.unit.forecast.scaling_simulator import Simulation, Stage, copy_stages

NOISE = 0.05


def draw_stages(seed):
    draw = random.Random(seed)
    return [
        Stage(
            draw.choice([50, 120, 300, 800]) * draw.uniform(0.7, 1.3),
            workers=draw.randint(1, 4),
            noise=draw.choice([0.0, 0.2, 0.5]),
            cpu_share=draw.choice([0, 0, 0.1, 0.5]),
        )
        for _ in range(draw.randint(1, 4))
    ]


@pytest.mark.parametrize("seed", range(8))
def test_steady_load_settles_and_then_hardly_changes_anything(seed):
    stages = draw_stages(seed)
    cpus = random.Random(seed).choice([2, 4, 16])
    moving = Simulation(copy_stages(stages), cpus=cpus, seed=seed)
    fixed = Simulation(copy_stages(stages), cpus=cpus, seed=seed, is_scaling=False)
    for end_s in (60, 240, 840):
        assert moving.run_until(end_s) >= (1 - NOISE) * fixed.run_until(end_s)
    later = [change.at_s for change in moving.changes if change.at_s > 60]
    assert len(later) <= 3
    assert all(after - before >= 60 for before, after in pairwise(later))


def test_workers_are_added_where_the_run_is_limited_until_the_bounds():
    simulation = Simulation([Stage(10), Stage(40, maximum=6), Stage(5)])
    simulation.run_until(30)
    assert simulation.workers == (2, 6, 1)
    first = simulation.changes[0].decision
    assert first.reason == "stage2 limits the run: its worker is busy 100 % of the time; a second one brings +100 %"
    assert first.gain == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("at_s", [60.0, 60.1, 60.2, 60.3, 60.4])
@pytest.mark.parametrize("interval_s", [0.5, 0.9])
def test_shift_is_followed_within_two_seconds(at_s, interval_s):
    stages = [Stage(20, workers=4, maximum=4), Stage(20, workers=4, maximum=16)]
    simulation = Simulation(stages, window=128, interval_s=interval_s)
    simulation.run_until(at_s)
    before = len(simulation.changes)
    simulation.stages[2].item_ms = 120
    simulation.run_until(at_s + 30)
    shifted = simulation.changes[before:]
    assert shifted[0].at_s - at_s <= 2
    assert {change.decision.group for change in shifted} == {2}
    assert simulation.workers[1] == 16


def test_moving_bottleneck_is_faster_than_the_start_layout():
    times = [(20, 100), (100, 20)] * 3
    rates = {}
    for is_scaling in (True, False):
        simulation = Simulation([Stage(20, workers=2), Stage(20, workers=2)], is_scaling=is_scaling)
        for number, (first, second) in enumerate(times, 1):
            simulation.stages[1].item_ms, simulation.stages[2].item_ms = first, second
            simulation.run_until(30 * number)
        rates[is_scaling] = simulation.items_out
    assert rates[True] > 1.8 * rates[False]


@pytest.mark.parametrize("max_rate", [21, 38])
def test_gain_that_does_not_come_is_taken_back_and_tried_ever_more_seldom(max_rate):
    simulation = Simulation([Stage(50, workers=2 if max_rate > 30 else 1, max_rate=max_rate)])
    start = simulation.workers
    rate = simulation.run_until(1800)
    assert rate > 0.95 * max_rate or max_rate == 21
    assert simulation.workers in {start, (2,)}
    settled = [change for change in simulation.changes if change.at_s > 60]
    assert len(settled) <= 8  # tries after 2, 6, 14 and 30 minutes
    assert any("instead of" in change.decision.reason for change in simulation.changes)


def test_cpus_that_are_full_get_no_more_workers():
    simulation = Simulation([Stage(50, cpu_share=1)], cpus=2)
    simulation.run_until(300)
    assert simulation.workers == (2,)


def test_other_programs_that_go_leave_room_for_workers():
    simulation = Simulation([Stage(50, cpu_share=1)], cpus=4)
    simulation.other_cpus = 3.0
    simulation.run_until(60)
    before = simulation.workers[0]
    simulation.other_cpus = 0.0
    assert simulation.run_until(120) > 60
    assert simulation.workers[0] > before


@pytest.mark.parametrize("consumer_ms,source_ms", [(60, 0.05), (0.05, 60)])
def test_consumer_or_source_that_limits_gets_no_workers(consumer_ms, source_ms):
    simulation = Simulation([Stage(50, workers=1)], consumer_ms=consumer_ms, source_ms=source_ms)
    simulation.run_until(300)
    assert not simulation.changes


def test_slow_start_is_only_paid_where_the_run_lasts_long_enough():
    short = Simulation([Stage(50, start_s=30)], total=40 * 20)
    short.run_until(60)
    assert not short.changes
    long = Simulation([Stage(50, start_s=30)], total=3600 * 20)
    long.run_until(300)
    assert long.workers == (8,)


def test_slow_items_at_the_end_get_workers_after_the_source_has_read_everything():
    simulation = Simulation([Stage(5), Stage(1)], total=2_000, window=200)
    while simulation.items_out < 1_810:  # the rest is in flight
        simulation.run_until(simulation.now_s + 0.1)
    assert simulation.workers[1] == 1
    simulation.stages[2].item_ms = 200
    simulation.run_until(simulation.now_s + 8)
    assert simulation.workers[1] >= 4


def test_stage_that_was_half_idle_follows_at_once_when_another_no_longer_limits():
    simulation = Simulation([Stage(200, workers=4, maximum=4), Stage(50, workers=2, maximum=4)])
    simulation.run_until(40)
    began_s, before = simulation.now_s, len(simulation.changes)
    simulation.stages[1].item_ms = 10
    simulation.run_until(began_s + 2)
    first = simulation.changes[before]
    assert (first.decision.group, first.at_s - began_s <= 2) == (2, True)


def test_a_worker_that_cannot_start_is_not_tried_again_at_once():
    simulation = Simulation([Stage(50, can_start=False)])
    simulation.run_until(600)
    assert 2 <= len(simulation.changes) <= 4
    assert simulation.changes[1].at_s - simulation.changes[0].at_s >= 60


def test_filters_and_batches_count_in_source_items():
    simulation = Simulation([Stage(5, keep=0.25), Stage(4, batch=16, maximum=1), Stage(1200)], window=1024)
    simulation.run_until(60)
    assert simulation.workers[1:] == (1, 8)
    assert simulation.changes[0].decision.group == 3
    assert simulation.changes[0].decision.gain == pytest.approx(1.0, abs=0.2)


def test_time_outside_of_the_iteration_is_no_reason_for_a_change():
    simulation = Simulation([Stage(50), Stage(20)])
    simulation.run_until(30.2)
    before = len(simulation.changes)
    simulation.is_outside = True
    simulation.run_until(60)
    simulation.is_outside = False
    simulation.run_until(90)
    assert not simulation.changes[before:]


def test_stage_that_waits_makes_room_in_memory_for_the_one_that_limits():
    large = {"memory_bytes": 1 << 30}
    simulation = Simulation([Stage(50, **large), Stage(20, **large)])
    simulation.run_until(30)
    before = len(simulation.changes)
    simulation.stages[1].item_ms, simulation.stages[2].item_ms = 10, 200
    simulation.run_until(120)
    assert "limits the run and needs the memory" in simulation.changes[before].decision.reason
    assert simulation.workers[1] > simulation.workers[0]
    assert sum(simulation.workers) <= 7  # GiB of 8


def test_items_of_seconds_are_not_judged_too_early():
    simulation = Simulation([Stage(3000, workers=2)])
    simulation.run_until(200)
    assert simulation.changes[0].at_s > 3
    assert simulation.workers == (8,)


@pytest.mark.parametrize("seed", range(4))
def test_workers_stay_where_items_go_on_to_grow_during_the_trial(seed):
    simulation = Simulation([Stage(100, workers=4, maximum=4, noise=0.05), Stage(6, maximum=4, noise=0.05)], seed=seed)
    simulation.run_until(15)
    for step in range(1, 41):  # to 64 times as long in 4 s
        simulation.stages[2].item_ms = 6 * 64 ** (step / 40)
        simulation.run_until(15 + step / 10)
    simulation.run_until(40)
    assert all(change.delta > 0 for change in simulation.changes)
    assert simulation.workers[1] == 4
