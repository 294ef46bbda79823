"""Ranks share a source's order: item i goes to rank i % world_size."""

import itertools
from typing import Any

import pytest

from stagepipe import RunError, UsageError
from stagepipe.plan.shard import Shard
from stagepipe.torch import Loader
from tests.zoo.pipelines import batch, pipeline, plain, stage

pytestmark = pytest.mark.timeout(60)

STREAM = {"uses": "tests.zoo.stages.stream", "with": {"count": 10}}


def of_ranks(config: dict[str, Any], world_size: int, **keys: Any) -> list[list[Any]]:
    found = []
    for rank in range(world_size):
        with Loader(config, rank=rank, world_size=world_size, inline=rank > 0, **keys) as loader:
            found.append([plain(item) for item in loader])
    return found


@pytest.mark.parametrize("source", [10, STREAM], ids=["indexed", "a stream"])
@pytest.mark.parametrize(
    "even, want",
    [(None, [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]), ("drop", [[0, 4], [1, 5], [2, 6], [3, 7]])],
)
def test_each_rank_takes_its_part_of_the_source(source, even, want):
    assert of_ranks(pipeline(stage("same"), source=source), 4, even=even) == want


def test_padding_begins_again_with_the_first_items():
    assert of_ranks(pipeline(stage("same"), source=10), 4, even="pad") == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
    assert of_ranks(pipeline(stage("same"), source=2), 5, even="pad") == [[0], [1], [0], [1], [0]]


def test_a_stream_cannot_be_padded():
    with pytest.raises(RunError, match="even='drop'"):
        of_ranks(pipeline(stage("same"), source=STREAM), 2, even="pad")


def test_an_item_is_worked_on_the_same_in_whatever_world():
    config = pipeline(stage("light_draws"), stage("random_parts"), source=12, seed=2)
    ((*alone,),) = of_ranks(config, 1)
    for world_size in (2, 3):
        ranks = of_ranks(config, world_size)
        together = sorted(itertools.chain(*ranks), key=lambda item: item["item"])
        assert together == alone


def test_batches_of_two_ranks_differ_in_their_draws():
    config = pipeline(batch(2), stage("light_draws"), source=8)
    first, second = of_ranks(config, 2)
    assert not {item["python"] for item in first} & {item["python"] for item in second}


def test_a_limit_is_the_worlds():
    assert of_ranks(pipeline(stage("same"), source=10), 2, limit=5) == [[0, 2, 4], [1, 3]]


def test_the_length_of_a_ranks_epoch():
    with Loader(pipeline(stage("same"), source=10), rank=3, world_size=4, inline=True) as loader:
        assert len(loader) == 2


def test_a_rank_resumes_from_its_own_state_and_from_no_other():
    config = pipeline(stage("light_draws"), batch(2), source=20, seed=1)
    keys: dict[str, Any] = {"rank": 1, "world_size": 2, "even": "drop"}
    with Loader(config, **keys) as loader:
        items = iter(loader)
        next(items)
        state = loader.state_dict()
        rest = [plain(item) for item in items]
        loader.load_state_dict(state)
        assert [plain(item) for item in loader] == rest
    with pytest.raises(UsageError, match=r"the state is of rank1, and this is rank0; load what this rank saved"):
        Loader(config, rank=0, world_size=2, even="drop").load_state_dict(state)
    with pytest.raises(UsageError, match=r"world_size: was 2, is 4"):
        Loader(config, rank=1, world_size=4, even="drop").load_state_dict(state)


@pytest.mark.parametrize("rank, world_size", [(2, 2), (-1, 2), (0, 0), (1.0, 2), (True, 2)])
def test_a_rank_that_is_not_in_the_world(rank, world_size):
    with pytest.raises(UsageError, match="a rank from 0 to"):
        Shard(rank, world_size)


def test_the_name_of_an_item_in_an_error_is_its_number_in_the_source():
    config = pipeline(stage("tests.zoo.bad.raises"), source=20)
    with pytest.raises(RunError, match="item 5") as caught:
        of_ranks(config, 1)
    failing = int(caught.value.item)
    with Loader(config, rank=failing % 2, world_size=2) as loader, pytest.raises(RunError, match="item 5"):
        list(loader)


def test_even_is_one_of_two_words():
    with pytest.raises(UsageError, match="give 'pad'"):
        Loader(pipeline(stage("same")), even="yes")
