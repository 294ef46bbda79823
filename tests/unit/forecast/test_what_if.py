"""What one change would have given, from the record of a run: the limit counts, and no change that cannot be made."""

import pytest
from msgspec.structs import replace

from stagepipe.forecast import estimate_changes
from stagepipe.report import CostPrediction, HopRecord, RunRecord, WhatIf
from stagepipe.timing import Histogram
from tests.support.pipelines import batch, stage
from tests.unit.forecast.test_costs import US, hop_record, plan, record, stage_record

ITEMS = 96


def hop(source: str, target: str, cost_us: int = 10, **more: object) -> HopRecord:
    phases = {"encode_ns": cost_us * US // 2, "decode_ns": cost_us * US // 2}
    histograms = {name: Histogram.from_values_ns([ns] * ITEMS) for name, ns in phases.items()}
    return replace(hop_record(source, target), phase_histograms=histograms, **more)


def run(*stages, hops, **more) -> RunRecord:
    """The record of a run of 96 items in 0.96 s, on 8 CPUs."""
    return replace(record(*stages, hops=hops), wall_ns=960_000_000, cpus=8, **more)


def worker(name, run_us, **more):
    """A stage whose worker waits for the rest of 10 ms an item."""
    made = stage_record(name, run_us, cpu_us=run_us, **more)
    return replace(made, wall_ns=ITEMS * 10_000 * US, starved_ns=ITEMS * (10_000 - run_us) * US - ITEMS * 20 * US)


def by_kind(estimates: tuple[WhatIf, ...]) -> dict[str, WhatIf]:
    assert [estimate.gain for estimate in estimates] == sorted((e.gain for e in estimates), reverse=True)
    return {estimate.kind: estimate for estimate in estimates}


def test_one_more_worker_goes_to_the_limit_until_the_next_stage_is_one():
    stages = (worker("source", 100), worker("slow", 9000), worker("next", 6000))
    hops = (hop("source", "slow"), hop("slow", "next"), hop("next", "sink"))
    estimates = by_kind(estimate_changes(plan(stage("same", "slow"), stage("same", "next")), run(*stages, hops=hops)))
    more = estimates["workers"]
    assert more.overrides == ("stages.slow.workers=2",)
    assert more.gain == pytest.approx(0.5, abs=0.02)
    assert more.items_per_s == pytest.approx(150, rel=0.02)
    without = estimates["without"]
    assert (without.change, without.overrides) == ("without slow", ())
    assert without.gain == pytest.approx(0.5, abs=0.02)
    assert estimates["fuse"].overrides == ("stages.slow.fuse=true",)
    assert estimates["fuse"].gain == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize(
    "most, override, reason",
    [
        (1, "stages.slow.workers=1-2", ""),
        (8, "stages.slow.workers=1-2", "the run itself adds workers to slow, up to 8"),
    ],
)
def test_workers_that_follow_the_work_get_wider_bounds_and_are_left_to_the_run_within_them(most, override, reason):
    slow = replace(worker("slow", 9000), min_workers=1, max_workers=most)
    stages = (worker("source", 100), slow, worker("next", 6000))
    hops = (hop("source", "slow"), hop("slow", "next"), hop("next", "sink"))
    estimates = by_kind(estimate_changes(plan(stage("same", "slow"), stage("same", "next")), run(*stages, hops=hops)))
    more = estimates["workers"]
    assert (more.change, more.overrides, more.ineligible_reason) == ("slow with up to 2 workers", (override,), reason)


def test_a_change_starts_from_the_workers_at_the_end():
    slow = replace(worker("slow", 9000), workers=3, mean_workers=1.0, min_workers=1, max_workers=3)
    stages = (worker("source", 100), slow, worker("next", 2900))
    hops = (hop("source", "slow"), hop("slow", "next"), hop("next", "sink"))
    estimates = by_kind(estimate_changes(plan(stage("same", "slow"), stage("same", "next")), run(*stages, hops=hops)))
    assert estimates["workers"].change.startswith("slow with up to 4 workers")


@pytest.mark.parametrize("cpu_us, fix", [(500, "concurrency=32"), (8000, "workers=2")])
def test_threads_that_wait_become_more_and_others_get_workers(cpu_us, fix):
    slow = replace(worker("slow", 9000, concurrency=16), cpu_ns=cpu_us * US * ITEMS)
    stages = (worker("source", 100), slow, worker("next", 5000))
    hops = (hop("source", "slow"), hop("slow", "next"), hop("next", "sink"))
    planned = plan(stage("same", "slow", concurrency=16), stage("same", "next"))
    best, *_ = estimate_changes(planned, run(*stages, hops=hops))
    assert best.overrides == (f"stages.slow.{fix}",)
    assert best.gain == pytest.approx(0.8, abs=0.03)


def test_work_outside_of_the_functions_counts():
    stages = [worker("source", 100), worker("slow", 4000), worker("next", 6000)]
    stages[1] = replace(stages[1], starved_ns=stages[1].starved_ns - ITEMS * 5000 * US)
    hops = (hop("source", "slow"), hop("slow", "next"), hop("next", "sink"))
    estimates = by_kind(estimate_changes(plan(stage("same", "slow"), stage("same", "next")), run(*stages, hops=hops)))
    assert estimates["workers"].overrides == ("stages.slow.workers=2",)
    assert estimates["workers"].gain == pytest.approx(0.5, abs=0.02)


def test_a_forced_pipe_gets_no_second_worker():
    stages = (worker("source", 100), worker("slow", 9000))
    hops = (hop("source", "slow"), hop("slow", "sink"))
    estimates = by_kind(estimate_changes(plan(stage("same", "slow", transport="pipe")), run(*stages, hops=hops)))
    assert "workers" not in estimates
    assert "fuse" not in estimates


def test_a_forced_mode_that_costs_more_is_estimated_without_it():
    predicted = CostPrediction(pipe_ns=5000 * US, shared_memory_ns=500 * US)
    made = (worker("source", 100), worker("slow", 9000))
    hops = (hop("source", "slow", 10_000, predicted=predicted), hop("slow", "sink", predicted=predicted))

    def estimate(transport: str) -> dict[str, WhatIf]:
        stages = (made[0], replace(made[1], busy_ns=ITEMS * 1000 * US, starved_ns=0))
        return by_kind(estimate_changes(plan(stage("same", "slow", transport=transport)), run(*stages, hops=hops)))

    freed = estimate("pipe")["mode"]
    assert freed.overrides == ("stages.slow.transport=auto",)
    assert freed.change == "auto transport into slow (at least)"
    assert freed.gain > 0.5
    assert "mode" not in estimate("shared_memory")
    assert "mode" not in estimate("auto")


def test_unmeasured_stages_are_not_estimated():
    stages = (worker("source", 100), worker("slow", 9000))
    hops = (hop("source", "slow"), hop("slow", "sink"))
    short = replace(run(*stages, hops=hops), items_in=15)
    assert estimate_changes(plan(stage("same", "slow")), short) == ()
    unreached = (stages[0], replace(stages[1], items=0))
    assert estimate_changes(plan(stage("same", "slow")), run(*unreached, hops=hops)) == ()


def test_an_order_point_gets_no_worker_and_stays():
    stages = (worker("source", 100), worker("batch", 9000))
    hops = (hop("source", "batch"), hop("batch", "sink"))
    estimates = by_kind(estimate_changes(plan(batch(4)), run(*stages, hops=hops)))
    assert "workers" not in estimates
    assert "without" not in estimates
    assert "fuse" not in estimates
