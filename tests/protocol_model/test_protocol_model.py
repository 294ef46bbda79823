"""The protocol model gives what the plain run gives, and notices each rule that is broken.

`__main__` says what the model covers and what it leaves out: any order with groups, memory limits, real releases.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.protocol_model.order_points import Grouping
from tests.protocol_model.pipeline import GroupingStep, Outcome, StageStep
from tests.protocol_model.random_pipelines import Case, plain_run, random_case
from tests.protocol_model.rules import Rule
from tests.protocol_model.stage_functions import unbatch
from tests.protocol_model.trials import problem_of, problems

FAST_CHUNK = 150
SLOW_CHUNK = 5_000
SEEDS = range(120)
"""Three of them at least notice most rules: for most it is one seed in 4 to 40."""
SEEDS_OF_RULES = {
    Rule.WIPE_AT_RETIREMENT: range(1110, 1130),
    Rule.ENTER_SEEKS_UNTIL_LEFT: range(220, 232),
    Rule.SPARE_OLDER_BLOCKS: range(184, 194),
    Rule.CARRY_SKIPS: range(600, 620),
    Rule.BLAME_IN_ITS_EPOCH: range(195, 210),
    Rule.LEAVE_CHUNK_AT_SEEK: range(100, 150),
    Rule.DROP_REST_AT_SEEK: range(130, 150),
}
"""Of the rules that few seeds notice: one in 65 to one in 600."""


def assert_equal_to_the_plain_run(seeds):
    for seed, problem in problems(seeds):
        pytest.fail(f"{problem}\npython -m tests.protocol_model --count 1 --seed {seed}")


@pytest.mark.parametrize("first", range(0, 6 * FAST_CHUNK, FAST_CHUNK), ids="seeds from {}".format)
def test_random_pipelines_yield_the_items_of_the_plain_run(first):
    assert_equal_to_the_plain_run(range(first, first + FAST_CHUNK))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, 60_000, SLOW_CHUNK), ids="seeds from {}".format)
def test_many_random_pipelines_yield_the_items_of_the_plain_run(first):
    assert_equal_to_the_plain_run(range(first, first + SLOW_CHUNK))


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_broken_rule_is_noticed(rule):
    seeds = SEEDS_OF_RULES.get(rule, SEEDS)
    noticed = next(problems(seeds, broken=rule), None)
    assert noticed, f"{rule} is broken, and no pipeline of {seeds} went wrong"
    seed, _ = noticed
    assert problem_of(seed) is None, "the pipeline goes wrong with all rules kept"


def test_a_pipeline_repeats_exactly():
    broken = Rule.REMEMBER_LAST_LEAF
    assert list(problems(range(30), broken)) == list(problems(range(30), broken))


def test_kills_reach_running_pipelines():
    eras = deliveries = 0
    for seed in range(50):
        rnd = random.Random(seed)
        case = random_case(rnd)
        pipeline = case.pipeline(rnd)
        assert pipeline.run(kills=8) is (Outcome.FAILED if case.fails_in(0) else Outcome.FINISHED)
        eras += pipeline.supervisor.machine.era
        deliveries += bool(pipeline.sink.delivered)
    assert eras > 50
    assert deliveries > 25


def test_every_trouble_reaches_running_pipelines():
    reached = Counter()
    for seed in range(250):
        rnd = random.Random(seed)
        case = random_case(rnd)
        pipeline = case.pipeline(rnd)
        outcome = pipeline.run(0, case.losses)
        reached["any order"] += case.any_order and pipeline.sink.delivered != plain_run(case, 0)
        reached["poison skipped"] += bool(pipeline.supervisor._named_as_poison) and outcome is Outcome.FINISHED
        reached["poison failed"] += outcome is Outcome.FAILED
        reached["survived a death"] += bool(pipeline.supervisor.machine.era) and outcome is Outcome.FINISHED
        reached["several entries"] += any(hop.most_entries > 1 for hop in pipeline.hops)
        reached["chunks"] += any(hop.most_rows > 1 for hop in pipeline.hops)
        reached["ranges"] += case.sends_ranges
        reached["several suspects"] += any(each.death.suspects for each in pipeline.supervisor.machine.restarts)
        reached["workers came and went"] += pipeline.supervisor.changes > 4 and outcome is Outcome.FINISHED
        reached["survived a stall"] += bool(pipeline.supervisor.machine.stalls) and outcome is Outcome.FINISHED
    assert all(count >= 5 for count in reached.values()), reached
    assert len(reached) == 10


def case(*steps, items):
    return Case(steps=list(steps), items=items, window=1, hop_capacity=1, stream=False, flaky=False)


def test_the_plain_run_batches_and_unbatches():
    batch = GroupingStep(Grouping.BATCH, 2)
    first, second, third = ("s", 7, 0), ("s", 7, 1), ("s", 7, 2)
    assert plain_run(case(batch, items=3), epoch=7) == [("b", (first, second)), ("b", (third,))]
    assert plain_run(case(batch, StageStep(unbatch, 1), items=3), epoch=7) == [first, second, third]


def test_the_plain_run_shuffles_within_blocks_and_differently_in_each_epoch():
    shuffle = GroupingStep(Grouping.SHUFFLE, 5)
    orders = [[item for _, _, item in plain_run(case(shuffle, items=10), epoch)] for epoch in range(3)]
    assert all(sorted(order[:5]) == [0, 1, 2, 3, 4] and sorted(order) == list(range(10)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
