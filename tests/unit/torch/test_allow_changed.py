"""`allow_changed=True` on loaders: a position of another config is taken, one of another split is not."""

import pytest

from stagepipe import UsageError
from stagepipe.torch import Loader, StageDataset

STAGE = {"name": "scale", "uses": lambda number: number * 1000}
CHANGED = {"name": "scale", "uses": lambda number: number * 2000}


def config(stage):
    return {"source": {"uses": range(4)}, "stages": [stage]}


@pytest.mark.parametrize("kind", [Loader, StageDataset])
def test_a_changed_stage_is_accepted_on_request(kind):
    with kind(config(STAGE), inline=True) as first:
        items = iter(first)
        assert [next(items), next(items)] == [0, 1000]
        state = first.state_dict()
    with kind(config(CHANGED), inline=True) as second:
        with pytest.raises(UsageError, match=r"stages\.scale\.uses: (code|constants)"):
            second.load_state_dict(state)
        second.load_state_dict(state, allow_changed=True)
        assert list(second) == [4000, 6000]


def test_another_world_size_without_the_other_ranks_is_refused_even_then():
    state = Loader(config(STAGE), world_size=2).state_dict()
    with pytest.raises(UsageError, match="world_size: saved 2, now 3"):
        Loader(config(STAGE), world_size=3).load_state_dict(state, allow_changed=True)


class OfRank:
    def __init__(self, rank):
        self.rank = rank

    def __call__(self, number):
        return number


def test_ranks_that_share_a_pipeline_compare_contents_in_the_state_and_names_when_they_connect():
    loaders = [
        Loader(config({"name": "own", "uses": OfRank(rank)}), share="node", local_rank=rank, local_world_size=2)
        for rank in range(2)
    ]
    descriptions = [loader.pipeline._config_description for loader in loaders]
    assert descriptions[0] == descriptions[1]
    states = [loader.state_dict() for loader in loaders]
    loaders[1].load_state_dict(states[1])
    with pytest.raises(UsageError, match="attribute `rank`: saved 0, now 1"):
        loaders[1].load_state_dict({**states[0], "rank1": states[1]["rank1"]})
    loaders[1].load_state_dict({**states[0], "rank1": states[1]["rank1"]}, allow_changed=True)
