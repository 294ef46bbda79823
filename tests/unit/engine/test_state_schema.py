"""A damaged state is refused at the load, with what is wrong; it never fails later."""

import json

import pytest

from stagepipe import Pipeline, UsageError

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
    "a key that is no text": ({**{k: v for k, v in damage().items() if k != "rank0"}, 3: 4}, "is of no rank"),
    "a list": ([1], "found list"),
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
