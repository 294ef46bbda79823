"""A run resumes with another number of ranks: what the old ranks had left is what the new ones get, each item once."""

import itertools
import json
from typing import Any

import pytest

from stagepipe import Pipeline, UsageError
from stagepipe.core import Cursor
from stagepipe.engine import EpochPosition, make_state_dict, parse_state_dict
from stagepipe.plan import Shard
from tests.support.pipelines import batch, pipeline, plain, shuffle, stage

WORLD_SIZES = list(itertools.product([1, 2, 3, 4], repeat=2))
TOTAL = 23
CONFIG: dict[str, str] = {"order": "source", "order_points": "0", "world_size": "0"}


def state(rank: int, world_size: int, position: EpochPosition, **config: str) -> dict[str, Any]:
    described = {**CONFIG, **config, "world_size": str(world_size)}
    return make_state_dict(position, described, Shard(rank, world_size))


def resume(
    states: list[dict[str, Any]], rank: int, world_size: int, *order_points: str, **config: str
) -> EpochPosition:
    described = {**CONFIG, "order_points": str(len(order_points)), **config, "world_size": str(world_size)}
    return parse_state_dict(states, described, Shard(rank, world_size), order_points=order_points)


def rest_of(position: EpochPosition, rank: int, world_size: int) -> list[int]:
    """Return the numbers of the items that a rank reads from a position on."""
    assert position.cursor is not None
    shard = Shard(rank, world_size)
    return [shard.to_item_number(index) for index in range(position.cursor.item, shard.count_items(TOTAL))]


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("saved, now", WORLD_SIZES)
def test_new_ranks_get_exactly_what_the_old_ones_had_left(saved, now, steps):
    position = EpochPosition(3, steps, Cursor(None, steps))
    states = [state(rank, saved, position) for rank in range(saved)]
    positions = [resume(states, rank, now) for rank in range(now)]
    rest = [number for rank in range(now) for number in rest_of(positions[rank], rank, now)]
    assert sorted(rest) == list(range(steps * saved, TOTAL))
    assert {position.epoch for position in positions} == {3}
    assert sum(position.items_yielded for position in positions) == steps * saved


def test_ranks_of_which_some_had_one_item_less_leave_no_gap():
    positions = [EpochPosition(0, count, Cursor(None, count)) for count in (6, 6, 6, 5)]  # the end of 23 items
    states = [state(rank, 4, position) for rank, position in enumerate(positions)]
    assert [rest_of(resume(states, rank, 3), rank, 3) for rank in range(3)] == [[], [], []]


@pytest.mark.parametrize("saved, now", WORLD_SIZES)
def test_batches_are_counted_like_items_and_keep_their_numbers_distinct(saved, now):
    cursor = Cursor(Cursor(None, 7, (7,)), 2)  # two batches of four: item 7 was the last of the second
    states = [state(rank, saved, EpochPosition(0, 2, cursor)) for rank in range(saved)]
    positions = [resume(states, rank, now, "batch") for rank in range(now)]
    rests = []
    for rank, position in enumerate(positions):
        assert position.cursor is not None
        assert position.cursor.upstream is not None
        rests += rest_of(EpochPosition(0, 0, position.cursor.upstream), rank, now)
        assert Shard(rank, now).to_item_number(position.cursor.item) >= 2 * saved
    if saved != now:
        assert sorted(rests) == list(range(8 * saved, TOTAL))


def test_the_start_of_an_epoch_can_be_resumed_by_any_number_of_ranks():
    states = [state(rank, 2, EpochPosition(4), order_points="2") for rank in range(2)]
    assert resume(states, 2, 3, "shuffle", "batch", order_points="2") == EpochPosition(4)


@pytest.mark.parametrize(
    "cursor, message",
    [
        (Cursor(Cursor(None, 8, emitted_count=3), 11), "rank 1 has delivered only a part of a group of stage shuffle"),
        (Cursor(Cursor(None, 8), 11, (11, 2)), "rank 1 has delivered only a part of item 11"),
        (
            Cursor(Cursor(None, 8, emitted_keys=frozenset({(9,)})), 11),
            r"a part of the items in flight \(`order: any`\)",
        ),
        (None, "the state of rank 1 was saved by an inline pipeline"),
        (Cursor(Cursor(None, 9), 11), r"the ranks stopped at different positions \(rank 0 first: 8, 9\)"),
    ],
    ids=["inside a shuffled block", "between an item's parts", "any order", "inline", "uneven"],
)
def test_a_position_that_cannot_be_divided_is_refused_by_name(cursor, message):
    whole = EpochPosition(0, 11, Cursor(Cursor(None, 8), 11))
    states = [state(0, 2, whole), state(1, 2, EpochPosition(0, 11, cursor))]
    with pytest.raises(UsageError, match=message):
        resume(states, 0, 3, "shuffle")
    assert resume(states, 1, 2, "shuffle").cursor == cursor, "at the same world size each rank has its own"


def test_ranks_in_different_epochs_are_refused():
    states = [state(0, 2, EpochPosition(1)), state(1, 2, EpochPosition(0, 3, Cursor(None, 3)))]
    with pytest.raises(UsageError, match=r"the ranks stopped at different epochs \(rank 0 first: 1, 0\)"):
        resume(states, 0, 3)


@pytest.mark.parametrize("ranks, missing", [((0, 2), "rank1"), ((), "rank0")])
def test_a_missing_rank_is_named(ranks, missing):
    states = [state(rank, 3, EpochPosition(0, 1, Cursor(None, 1))) for rank in ranks]
    expected = f"has no {missing}; pass the states of all 3 ranks in one list" if ranks else "not the state of"
    with pytest.raises(UsageError, match=expected):
        resume(states, 0, 2)


def test_states_of_different_runs_are_refused():
    position = EpochPosition(0, 1, Cursor(None, 1))
    with pytest.raises(UsageError, match="state 1 has another `config` than one before it"):
        resume([state(0, 2, position), state(1, 2, position, seed="5")], 0, 3)


def test_ranks_that_share_a_pipeline_are_refused():
    position = EpochPosition(0, 1, Cursor(None, 1))
    states = [state(rank, 2, position, share="node") for rank in range(2)]
    with pytest.raises(UsageError, match="world_size: saved 2, now 3"):
        resume(states, 0, 3, share="node")


def test_an_inline_pipeline_is_refused_in_the_middle_of_an_epoch():
    config = pipeline(stage("same"), source=9)
    with Pipeline(config) as saved:
        items = iter(saved)
        next(items)
        state_dict = json.loads(json.dumps(saved.state_dict()))
    with pytest.raises(UsageError, match="cannot resume at another world size in the middle of an epoch"):
        Pipeline(config, world_size=2, inline=True).load_state_dict(state_dict)


def run_ranks(config: dict[str, Any], world_size: int, states: list[dict[str, Any]] | None, steps: int | None) -> Any:
    """Return the items of all ranks and their states: of the whole epoch, or of its next `steps`."""
    items, saved = [], []
    for rank in range(world_size):
        with Pipeline(config, rank=rank, world_size=world_size, even="pad") as running:
            if states is not None:
                running.load_state_dict(states)
            items += [plain(item) for item in itertools.islice(running, steps)]
            saved.append(running.state_dict())
    return items, saved


@pytest.mark.timeout(100)
def test_a_run_of_two_ranks_goes_on_with_three_and_then_with_one():
    config = pipeline(stage("light_draws", fuse=True), source=11, seed=3)
    alone = {item["item"]: plain(item) for item in Pipeline(config, inline=True)}
    first, states = run_ranks(config, 2, None, 2)
    second, states = run_ranks(config, 3, states, 1)
    third, states = run_ranks(config, 1, states, None)
    numbers = [item["item"] for item in (*first, *second, *third)]
    assert numbers == [0, 2, 1, 3, 6, 4, 5, *range(7, 11)]
    assert [alone[item["item"]] for item in (*first, *second, *third)] == [*first, *second, *third]
    assert json.loads(states[0]["rank0"])["epoch"] == 1


def test_ranks_that_had_only_padding_left_end_the_epoch():
    config = pipeline(stage("same"), source=6)
    states = []
    for rank in range(4):  # the second items of ranks 2 and 3 repeat the first items
        start = Pipeline(config, rank=rank, world_size=4, even="pad").state_dict()
        position = {"epoch": 0, "items": 2, "cursor": [None, 2, None, 0, [], [], []]}
        states.append({**start, f"rank{rank}": json.dumps(position)})
    with Pipeline(config, rank=0, world_size=3, even="pad") as running:
        running.load_state_dict(states)
        assert list(running) == []
        assert list(running) == [0, 3]


def test_a_shuffled_block_in_part_is_refused_with_the_name_of_its_stage():
    config = pipeline(shuffle(4), batch(2), source=16)
    with Pipeline(config) as running:
        next(iter(running))
        state_dict = running.state_dict()
    with pytest.raises(UsageError, match="rank 0 has delivered only a part of a group of stage shuffle"):
        Pipeline(config, world_size=2).load_state_dict(state_dict)
