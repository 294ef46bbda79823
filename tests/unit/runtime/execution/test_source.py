"""What a source draws depends on (seed, epoch, item) alone: not on fusing, resume, ranks, `limit` or `only`."""

import itertools
from typing import Any

import pytest

from stagepipe import Pipeline
from stagepipe.sources import DatasetSource
from tests.support.datasets import NoisyLines
from tests.support.pipelines import outputs, plain
from tests.support.random_sources import NoisyPairs, Samples, ShuffledByContext, noisy, noisy_parts, stream

COUNT = 8
SOURCES = {
    "function": {"uses": stream, "with": {"count": COUNT}},
    "iterable": {"uses": Samples, "with": {"count": COUNT}},
    "dataset": {"uses": DatasetSource, "with": {"dataset": {"uses": NoisyLines, "with": {"count": COUNT}}}},
}


def make_config(source: dict[str, Any], *stages: Any, **keys: Any) -> dict[str, Any]:
    entries = [{"name": f"s{index}", "uses": uses, **keys} for index, uses in enumerate(stages)]
    return {"source": source, "stages": entries, "seed": 5}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SOURCES[request.param]


@pytest.mark.parametrize("stage", [noisy, noisy_parts])
def test_a_fused_stage_changes_nothing_that_the_source_draws(source, stage):
    fused = outputs(make_config(source, stage, fuse=True), inline=True)
    assert fused == outputs(make_config(source, stage), inline=True)
    values = [item[0] for item in fused]
    assert list(dict.fromkeys(values)) == outputs(make_config(source), inline=True)


@pytest.mark.parametrize("position", range(COUNT + 1))
def test_a_stream_resumes_with_the_same_draws(source, position):
    config = make_config(source, noisy, noisy_parts, NoisyPairs, fuse=True)
    config["stages"][2].pop("fuse")
    with Pipeline(config, inline=True) as whole:
        epochs = [[plain(item) for item in whole] for _ in range(2)]
    assert epochs[0] != epochs[1]
    with Pipeline(config, inline=True) as stopped:
        list(itertools.islice(stopped, position))
        state = stopped.state_dict()
    with Pipeline(config, inline=True) as resumed:
        resumed.load_state_dict(state)
        assert [plain(item) for item in resumed] == epochs[0][position:] or position == COUNT
        if position < COUNT:
            assert [plain(item) for item in resumed] == epochs[1]


@pytest.mark.parametrize(
    "selection",
    [{"limit": 3}, {"rank": 1, "world_size": 3}, {"rank": 1, "world_size": 3, "even": "drop"}, {"only": [2, 5]}],
)
def test_a_part_of_a_stream_has_the_draws_of_the_whole(source, selection):
    config = make_config(source, noisy_parts, fuse=True)
    whole = outputs(config, inline=True, epochs=2)
    part = outputs(config, inline=True, epochs=2, **selection)
    assert part
    assert [item for item in whole if item in part] == part


def test_all_ranks_draw_the_same_order_in_begin():
    config = make_config({"uses": ShuffledByContext, "with": {"count": COUNT}})
    items = [outputs(config, inline=True, rank=rank, world_size=2) for rank in range(2)]
    assert sorted(items[0] + items[1]) == list(range(COUNT))


def test_an_order_point_draws_the_same_whatever_ran_before():
    config = make_config({"uses": range(4)}, noisy, NoisyPairs)
    first = outputs(config, inline=True)
    config["stages"][0] = {"name": "s0", "uses": noisy, "reseed": False}
    second = outputs(config, inline=True)
    draws = [[[pair[1:] for pair in item[0]] + [item[1:]] for item in items] for items in (first, second)]
    assert draws[0] == draws[1]
