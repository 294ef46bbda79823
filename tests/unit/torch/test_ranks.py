"""Ranks share a source's order: item i goes to rank i % world_size."""

import itertools
from typing import Any

import pytest

from stagepipe import RunError, UsageError
from stagepipe.plan import Shard
from stagepipe.torch import Loader
from tests.support.pipelines import batch, pipeline, plain, stage

pytestmark = pytest.mark.timeout(60)

STREAM = {"uses": "tests.support.stages.stream", "with": {"count": 10}}


def run_ranks(config: dict[str, Any], world_size: int, **keys: Any) -> list[list[Any]]:
    items_of_rank = []
    for rank in range(world_size):
        with Loader(config, rank=rank, world_size=world_size, inline=rank > 0, **keys) as loader:
            items_of_rank.append([plain(item) for item in loader])
    return items_of_rank


@pytest.mark.parametrize("source", [10, STREAM], ids=["indexed", "a stream"])
@pytest.mark.parametrize(
    "even, expected",
    [(None, [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]), ("drop", [[0, 4], [1, 5], [2, 6], [3, 7]])],
)
def test_each_rank_gets_its_part_of_the_source(source, even, expected):
    assert run_ranks(pipeline(stage("same"), source=source), 4, even=even) == expected


def test_padding_repeats_the_first_items():
    assert run_ranks(pipeline(stage("same"), source=10), 4, even="pad") == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
    assert run_ranks(pipeline(stage("same"), source=2), 5, even="pad") == [[0], [1], [0], [1], [0]]


def test_a_stream_cannot_be_padded():
    with pytest.raises(RunError, match="even='drop'"):
        run_ranks(pipeline(stage("same"), source=STREAM), 2, even="pad")


def test_an_item_comes_out_the_same_with_any_world_size():
    config = pipeline(stage("light_draws"), stage("random_parts"), source=12, seed=2)
    ((*alone,),) = run_ranks(config, 1)
    for world_size in (2, 3):
        ranks = run_ranks(config, world_size)
        together = sorted(itertools.chain(*ranks), key=lambda item: item["item"])
        assert together == alone


def test_batches_of_two_ranks_differ_in_their_draws():
    config = pipeline(batch(2), stage("light_draws"), source=8)
    first, second = run_ranks(config, 2)
    assert not {item["python"] for item in first} & {item["python"] for item in second}


def test_a_limit_counts_the_items_of_all_ranks():
    assert run_ranks(pipeline(stage("same"), source=10), 2, limit=5) == [[0, 2, 4], [1, 3]]


def test_the_length_of_a_ranks_epoch():
    with Loader(pipeline(stage("same"), source=10), rank=3, world_size=4, inline=True) as loader:
        assert len(loader) == 2


def test_a_rank_resumes_only_from_its_own_state():
    config = pipeline(stage("light_draws"), batch(2), source=20, seed=1)
    keys: dict[str, Any] = {"rank": 1, "world_size": 2, "even": "drop"}
    with Loader(config, **keys) as loader:
        items = iter(loader)
        next(items)
        state = loader.state_dict()
        rest = [plain(item) for item in items]
        loader.load_state_dict(state)
        assert [plain(item) for item in loader] == rest
    with pytest.raises(
        UsageError, match=r"this state has rank1, but this is rank0; load the state that this rank saved"
    ):
        Loader(config, rank=0, world_size=2, even="drop").load_state_dict(state)
    with pytest.raises(UsageError, match=r"world_size: saved 2, now 4"):
        Loader(config, rank=1, world_size=4, even="drop").load_state_dict(state)


@pytest.mark.parametrize("rank, world_size", [(2, 2), (-1, 2), (0, 0), (1.0, 2), (True, 2)])
def test_a_rank_outside_the_world_is_refused(rank, world_size):
    with pytest.raises(UsageError, match="both must be integers, and the rank from 0 to"):
        Shard(rank, world_size)


def test_the_name_of_an_item_in_an_error_is_its_number_in_the_source():
    config = pipeline(stage("tests.support.bad_stages.raises"), source=20)
    with pytest.raises(RunError, match="item 5") as caught:
        run_ranks(config, 1)
    failing = int(caught.value.item)
    with Loader(config, rank=failing % 2, world_size=2) as loader, pytest.raises(RunError, match="item 5"):
        list(loader)


def test_an_unknown_even_is_refused():
    with pytest.raises(UsageError, match="must be 'pad'"):
        Loader(pipeline(stage("same")), even="yes")
