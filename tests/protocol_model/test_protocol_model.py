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
SEEDS_OF_RULES = {
    Rule.COPY_OLD_BLOCKS: range(100),
    Rule.TAG_PROGRESS: range(100),
    Rule.REMEMBER_LAST_LEAF: range(100),
    Rule.CARRY_SKIPS: range(370, 600),
    Rule.STOP_SINK_FIRST: range(100),
    Rule.WIPE_AFTER_ENTRY: range(100),
    Rule.REMEMBER_EMITTED_KEYS: range(100),
    Rule.RESUME_AT_LOWEST_OPEN: range(40, 120),
    Rule.CLEAR_CURRENT_ITEM: range(100),
    Rule.BLAME_IN_ITS_EPOCH: range(740, 780),
    Rule.RETRY_BEFORE_SKIP: range(100),
    Rule.KEEP_POISON_SKIPS: range(100),
    Rule.SEEK_WHEN_STALLED: range(100),
    Rule.WAIT_FOR_OWN_ERA: range(30, 110),
    Rule.BEGIN_ERA_AT_DEATH: range(100),
    Rule.SEND_SEEK_WHEN_READY: range(100),
    Rule.FORGET_STALLS: range(100),
    Rule.FLUSH_BEFORE_WAIT: range(100),
    Rule.NAME_EACH_ENTRY: range(100),
    Rule.CHECK_EACH_ENTRY: range(100),
    Rule.TAG_EACH_ENTRY: range(100),
    Rule.RELEASE_DROPPED_ENTRIES: range(100),
    Rule.CUT_CHUNK_AT_GAP: range(30, 120),
    Rule.NAME_EACH_SAMPLE: range(150),
    Rule.LEAVE_CHUNK_AT_SEEK: range(250, 300),
    Rule.SEND_SKIPS_ALONE: range(180),
    Rule.KEEP_OTHER_ROWS: range(60, 120),
    Rule.CURSOR_INSIDE_CHUNK: range(90, 120),
    Rule.COUNT_EACH_ROW: range(60),
}
"""Seeds that notice that the rule is broken: two at least, but one for BLAME_IN_ITS_EPOCH.

Most rules need few: one seed in two to twenty notices. For CARRY_SKIPS it is one in 300, for BLAME_IN_ITS_EPOCH one in
700.
"""


def assert_equal_to_the_plain_run(seeds):
    for seed, problem in problems(seeds):
        pytest.fail(f"{problem}\npython -m tests.protocol_model --count 1 --seed {seed}")


@pytest.mark.parametrize("first", range(0, 6 * FAST_CHUNK, FAST_CHUNK), ids="seeds from {}".format)
def test_random_pipelines_give_what_the_plain_run_gives(first):
    assert_equal_to_the_plain_run(range(first, first + FAST_CHUNK))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, 60_000, SLOW_CHUNK), ids="seeds from {}".format)
def test_many_random_pipelines_give_what_the_plain_run_gives(first):
    assert_equal_to_the_plain_run(range(first, first + SLOW_CHUNK))


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_broken_rule_is_noticed(rule):
    noticed = next(problems(SEEDS_OF_RULES[rule], broken=rule), None)
    assert noticed, f"{rule} is broken, and no pipeline of {SEEDS_OF_RULES[rule]} went wrong"
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
    for seed in range(200):
        rnd = random.Random(seed)
        case = random_case(rnd)
        pipeline = case.pipeline(rnd)
        outcome = pipeline.run(0, case.losses)
        reached["any order"] += case.any_order and pipeline.sink.delivered != plain_run(case, 0)
        reached["poison skipped"] += bool(pipeline.supervisor._named_as_poison) and outcome is Outcome.FINISHED
        reached["poison failed"] += outcome is Outcome.FAILED
        reached["survived a death"] += bool(pipeline.supervisor.machine.era) and outcome is Outcome.FINISHED
        reached["several entries"] += any(hop.most_entries > 1 for hop in pipeline.hops)
        reached["chunks"] += case.max_rows > 1
        reached["survived a stall"] += bool(pipeline.supervisor.machine.stalls) and outcome is Outcome.FINISHED
    assert all(count >= 5 for count in reached.values()), reached
    assert len(reached) == 7


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
