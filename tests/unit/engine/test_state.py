"""States: a damaged one is refused at the load, and a changed function by name; other ranks get what is left."""

import functools
import itertools
import json
import sys
import threading
from typing import Any

import pytest

from stagepipe import Pipeline, UsageError, from_source
from stagepipe.core import Cursor
from stagepipe.engine import EpochPosition, make_state_dict, parse_state_dict
from stagepipe.plan import Shard
from tests.support.pipelines import batch, pipeline, plain, shuffle, stage

WORLD_SIZES = list(itertools.product([1, 2, 3, 4], repeat=2))
TOTAL = 23
DESCRIPTION: dict[str, str] = {"order": "source", "order_points": "0", "world_size": "0"}


def state(rank: int, world_size: int, position: EpochPosition, **config: str) -> dict[str, Any]:
    described = {**DESCRIPTION, **config, "world_size": str(world_size)}
    return make_state_dict(position, described, Shard(rank, world_size))


def resume(
    states: list[dict[str, Any]], rank: int, world_size: int, *order_points: str, **config: str
) -> EpochPosition:
    described = {**DESCRIPTION, "order_points": str(len(order_points)), **config, "world_size": str(world_size)}
    return parse_state_dict(states, described, Shard(rank, world_size), order_points=order_points)


def rest_of(position: EpochPosition, rank: int, world_size: int) -> list[int]:
    """Return the numbers of the items that a rank reads from a position on."""
    assert position.cursor is not None
    shard = Shard(rank, world_size)
    return [shard.to_item_number(index) for index in range(position.cursor.item, shard.count_items(TOTAL))]


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("saved, now", WORLD_SIZES)
def test_new_ranks_get_exactly_the_items_that_the_old_ones_had_left(saved, now, steps):
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


CONFIG = {"name": "p", "source": {"uses": range(6)}, "stages": [{"name": "neg", "uses": "operator.neg"}]}
FIRST = {"epoch": 0, "items": 0, "cursor": None}


def make_pipeline():
    return Pipeline(CONFIG, inline=True)


def damage(**changes):
    """A valid state with some of its entries replaced; a dict replaces parts of the position."""
    position = changes.pop("rank0", {})
    state = make_pipeline().state_dict()
    if isinstance(position, dict):
        state["rank0"] = json.dumps(FIRST | position)
    else:
        state["rank0"] = position
    return state | changes


DAMAGED = {
    "negative items": (damage(rank0={"items": -1}), "`rank0` is damaged: .*>= 0 - at `\\$.items`"),
    "huge items": (damage(rank0={"items": 10**20}), "`rank0` is damaged: .*`\\$.items`"),
    "items as text": (damage(rank0={"items": "3"}), "Expected `int`, got `str` - at `\\$.items`"),
    "negative epoch": (damage(rank0={"epoch": -1}), ">= 0 - at `\\$.epoch`"),
    "epoch 1e30": (damage(rank0={"epoch": 1e30}), "`\\$.epoch`"),
    "a number as cursor": (damage(rank0={"cursor": 3}), "`\\$.cursor`"),
    "an empty key": (damage(rank0={"cursor": [None, 1, []]}), "length >= 1"),
    "too many cursors": (damage(rank0={"cursor": [[None, 1], 1]}), "2 nested cursors, this pipeline has 1"),
    "a deep cursor": (damage(rank0='{"epoch":0,"items":1,"cursor":' + "[" * 9999), "nested too deeply"),
    "no items": (damage(rank0="{}"), "`rank0` is damaged"),
    "cut off": (damage(rank0='{"epoch":0,"it'), "`rank0` is damaged: Input data was truncated"),
    "a position that is no text": (damage(rank0=3), "`rank0` is of type int, expected str"),
    "a config that is no text": (damage(config=None), "`config` is of type NoneType"),
    "a config of numbers": (damage(config='{"seed": 3}'), "`config` is damaged"),
    "a surrogate": (damage(config="\ud800"), "`config` is damaged"),
    "a version that is no number": (damage(version=[1]), r"version \[1\], expected version 1"),
    "a version that is a bool": (damage(version=True), "version True"),
    "a key that is no text": ({**{k: v for k, v in damage().items() if k != "rank0"}, 3: 4}, "has no rank"),
    "a list of no states": ([1], "found int"),
    "an empty list": ([], "found keys"),
    "a world size as text": (damage(world_size="2"), "`world_size` is '2'"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_state_is_refused_at_the_load(case):
    state, words = DAMAGED[case]
    with pytest.raises(UsageError, match=words):
        make_pipeline().load_state_dict(state)
    with pytest.raises(UsageError, match=words):
        make_pipeline().load_state_dict(state, allow_changed=True)


@pytest.mark.parametrize("epoch", [-1, 2**32, 1.0, True])
def test_an_epoch_is_checked_when_it_is_set(epoch):
    with pytest.raises(UsageError, match="an epoch is an integer"):
        make_pipeline().set_epoch(epoch)


SCALE = 2


class Resize:
    def __init__(self, size):
        self.size = size

    def __call__(self, number):
        return number * self.size


class Guarded(Resize):
    def __init__(self, size):
        super().__init__(size)
        self.lock = threading.Lock()


def make(uses, source=range(6), **keys):
    """Return a pipeline of a source and a stage."""
    config = {"name": "test", "source": {"uses": source}, "stages": [{"name": "resize", "uses": uses, **keys}]}
    return Pipeline(config, inline=True)


def close_over(size):
    return lambda number: number * size


def add_in_a_nested_function(number):
    def add(part):
        return part + 1000

    return add(number)


def add_otherwise_in_a_nested_function(number):
    def add(part):
        return part + 2000

    return add(number)


add_otherwise_in_a_nested_function.__name__ = "add_in_a_nested_function"


def scale(factor, number):
    return factor * number


CHANGES = {
    "constant": (lambda number: number * 1000, lambda number: number * 2000, "constants: saved [1000], now [2000]"),
    "default": (
        lambda number, size=1: number * size,
        lambda number, size=2: number * size,
        "default `size`: saved 1, now 2",
    ),
    "keyword default": (
        lambda number, *, size=1: number * size,
        lambda number, *, size=2: number * size,
        "default `size`: saved 1, now 2",
    ),
    "closure": (close_over(224), close_over(256), "closure value `size`: saved 224, now 256"),
    "attribute": (Resize(224), Resize(256), "attribute `size`: saved 224, now 256"),
    "method": (Resize(224).__call__, Resize(256).__call__, "object: attribute `size`: saved 224, now 256"),
    "partial": (functools.partial(scale, 1), functools.partial(scale, 2), "argument 0: saved 1, now 2"),
    "nested": (
        add_in_a_nested_function,
        add_otherwise_in_a_nested_function,
        "constants: saved [1000], now [2000]",
    ),
    "code": (lambda number: number + SCALE, lambda number: number - SCALE, "code: changed"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused_and_named(change):
    first, second, difference = CHANGES[change]
    state = json.loads(json.dumps(make(first).state_dict()))
    make(first).load_state_dict(state)
    with pytest.raises(UsageError, match="different config; resuming would yield different data") as caught:
        make(second).load_state_dict(state)
    assert f"stages.resize.uses: {difference}" in str(caught.value)
    assert "allow_changed=True" in str(caught.value)
    make(second).load_state_dict(state, allow_changed=True)


def test_a_global_constant_is_named(monkeypatch):
    pipeline = make(lambda number: number * SCALE)
    state = pipeline.state_dict()
    monkeypatch.setitem(globals(), "SCALE", 3)
    with pytest.raises(UsageError, match=r"stages\.resize\.uses: global `SCALE`: saved 2, now 3"):
        make(lambda number: number * SCALE).load_state_dict(state)


def test_arguments_and_sources_are_compared_too():
    state = make(Resize, **{"with": {"size": close_over(1)}}).state_dict()
    with pytest.raises(UsageError, match=r"stages\.resize\.with\.size: closure value `size`: saved 1, now 2"):
        make(Resize, **{"with": {"size": close_over(2)}}).load_state_dict(state)
    state = make(Resize(1), source=[Resize(1)]).state_dict()
    with pytest.raises(UsageError, match=r"source\.uses: element 0: attribute `size`: saved 1, now 2"):
        make(Resize(1), source=[Resize(2)]).load_state_dict(state)


def test_the_same_objects_built_again_are_accepted():
    make(Resize(3), source=[1, "a"]).load_state_dict(make(Resize(3), source=[1, "a"]).state_dict())
    make(close_over(3)).load_state_dict(make(close_over(3)).state_dict())


def test_an_object_without_a_fingerprint_runs_and_saves_but_does_not_resume():
    with make(Guarded(2)) as pipeline:
        items = iter(pipeline)
        assert [next(items), next(items)] == [0, 2]
        state = pipeline.state_dict()
    resumed = make(Guarded(2))
    with pytest.raises(UsageError, match="cannot be compared") as caught:
        resumed.load_state_dict(state)
    assert "stages.resize.uses: attribute `lock`: cannot pickle '_thread.lock' object" in str(caught.value)
    assert "`__getstate__`" in str(caught.value)
    resumed.load_state_dict(state, allow_changed=True)
    with resumed:
        assert list(resumed) == [4, 6, 8, 10]
    with pytest.raises(UsageError, match="attribute `size`: saved 2, now 3"):
        make(Guarded(3)).load_state_dict(state)


def test_a_state_of_an_object_without_a_fingerprint_is_refused_by_a_pipeline_without_it():
    with pytest.raises(UsageError, match="saved Guarded, now Resize"):
        make(Resize(2)).load_state_dict(make(Guarded(2)).state_dict())
    first, second = make(close_over(threading.Lock())), make(close_over(3))
    with pytest.raises(UsageError, match=r"stages\.resize\.uses: closure value `size`: cannot pickle"):
        second.load_state_dict(first.state_dict())
    with pytest.raises(UsageError, match=r"stages\.resize\.uses: closure value `size`: cannot pickle"):
        first.load_state_dict(second.state_dict())


def test_an_inline_run_that_changes_its_objects_resumes():
    class Counter:
        def __init__(self):
            self.count = 0

        def __call__(self, number):
            self.count += 1
            return number

    with make(Counter()) as pipeline:
        items = iter(pipeline)
        assert [next(items), next(items)] == [0, 1]
        state = pipeline.state_dict()
    with make(Counter()) as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == [2, 3, 4, 5]


def test_fingerprints_are_computed_only_where_a_state_may_be_taken():
    class Reduced(Resize):
        count = 0

        def __reduce_ex__(self, protocol):
            Reduced.count += 1
            return super().__reduce_ex__(protocol)

    assert from_source(range(3)).map(Reduced(2)).take(2) == [0, 2]
    pipeline = Pipeline({"source": {"uses": range(3)}, "stages": [{"name": "resize", "uses": Reduced(2)}]})
    assert Reduced.count == 0
    pipeline.state_dict()
    assert Reduced.count == 1
    pipeline.state_dict()
    assert Reduced.count == 1


def test_bytecode_of_another_python_is_not_compared(monkeypatch):
    state = make(close_over(1)).state_dict()
    saved = json.loads(state["config"])
    assert saved["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    saved |= {"python": "3.9", "stages.resize.uses: code": "#000000000000"}
    with pytest.raises(UsageError, match=r"python: saved 3\.9, now 3\.\d+; bytecode differs") as caught:
        make(close_over(1)).load_state_dict({**state, "config": json.dumps(saved)})
    assert "code: changed" not in str(caught.value)
    assert "python" not in json.loads(make("math.sqrt").state_dict()["config"])


@pytest.mark.parametrize(
    "change, difference",
    [
        ({"order": "any"}, "order: saved source, now any"),
        (
            {"stages": [{"name": "batch", "uses": "stagepipe.stages.Batch", "with": {"size": 2}}]},
            "order_points: saved 0, now 1",
        ),
    ],
)
def test_a_change_that_leaves_no_position_is_refused_even_then(change, difference):
    config = {"name": "test", "source": {"uses": range(6)}, "stages": [{"name": "same", "uses": Resize(1)}]}
    state = Pipeline(config).state_dict()
    with pytest.raises(UsageError, match="no position in this config, even with allow_changed=True") as caught:
        Pipeline({**config, **change}).load_state_dict(state, allow_changed=True)
    assert difference in str(caught.value)
    with pytest.raises(UsageError, match="even: saved None, now drop"):
        Pipeline(config, even="drop").load_state_dict(state, allow_changed=True)


def test_a_state_with_objects_is_small():
    config = {"name": "test", "source": {"uses": list(range(10_000))}}
    stages = [{"name": f"stage{number}", "uses": close_over([Resize(number)] * 100)} for number in range(10)]
    assert len(json.dumps(Pipeline({**config, "stages": stages}).state_dict())) < 20_000
