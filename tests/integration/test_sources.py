"""Every record source: resumes anywhere, splits between ranks, and shuffles the same with any number of workers."""

import random
from pathlib import Path
from typing import Any

import pytest

from stagepipe import Pipeline
from tests.support import array_source_cases
from tests.support.pipelines import plain
from tests.support.source_cases import CASES, COUNT, SourceCase

assert array_source_cases, "it adds cases"


@pytest.fixture(params=CASES)
def source_case(request: pytest.FixtureRequest) -> SourceCase:
    return CASES[request.param]


@pytest.fixture
def source(source_case: SourceCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return {"uses": source_case.uses, "with": source_case.write(tmp_path / "data")}


def make_config(source: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    return {"name": "test", "seed": 3, "source": {**source, "with": {**source["with"], **arguments}}}


def read(config: dict[str, Any], *, epochs: int = 1, inline: bool = True, **keys: Any) -> list[list[Any]]:
    with Pipeline(config, inline=inline, **keys) as pipeline:
        return [[plain(item) for item in pipeline] for _ in range(epochs)]


def ids(case: SourceCase, items: list[Any]) -> list[int]:
    return [case.get_id(item) for item in items]


def test_all_records_come_in_order_and_the_length_is_known(source_case, source):
    with Pipeline(make_config(source), inline=True) as pipeline:
        assert len(pipeline) == COUNT
        assert ids(source_case, [plain(item) for item in pipeline]) == list(range(COUNT))


def test_a_shuffle_differs_in_each_epoch(source_case, source):
    first, second = read(make_config(source, shuffle=True), epochs=2)
    assert sorted(ids(source_case, first)) == sorted(ids(source_case, second)) == list(range(COUNT))
    orders = [ids(source_case, first), ids(source_case, second), list(range(COUNT))]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_resumed_at_20_random_positions(source):
    config = make_config(source, shuffle=True)
    expected = read(config, epochs=3)
    rnd = random.Random(source["uses"])
    stops = {0: rnd.sample(range(COUNT), 10), 1: rnd.sample(range(COUNT), 10)}
    states = []
    with Pipeline(config, inline=True) as pipeline:
        for epoch, stops_of_epoch in stops.items():
            for position, _ in enumerate(pipeline, start=1):
                if position in stops_of_epoch:
                    states.append((epoch, position, pipeline.state_dict()))
            if 0 in stops_of_epoch:
                states.append((epoch + 1, 0, pipeline.state_dict()))
    assert len(states) == 20
    with Pipeline(config, inline=True) as resumed:
        for epoch, stop, state in states:
            resumed.load_state_dict(state)
            assert [plain(item) for item in resumed] == expected[epoch][stop:]


def test_three_ranks_read_each_record_once(source_case, source):
    config = make_config(source, shuffle=True)
    parts = [ids(source_case, read(config, rank=rank, world_size=3)[0]) for rank in range(3)]
    assert sorted(number for part in parts for number in part) == list(range(COUNT))
    assert {len(part) for part in parts} == {COUNT // 3, COUNT // 3 + 1}


def test_three_workers_give_the_same_shuffle(source):
    config = make_config(source, shuffle=True)
    assert read({**config, "source": {**config["source"], "workers": 3}}, inline=False) == read(config)


def test_one_and_three_workers_give_the_same_shuffle_by_blocks(tmp_path):
    source = {"uses": "stagepipe.sources.parquet", "with": CASES["parquet"].write(tmp_path)}
    config = make_config(source, shuffle="blocks")
    expected = read(config)
    assert sorted(item["id"] for item in expected[0]) == list(range(COUNT))
    for workers in (1, 3):
        assert read({**config, "source": {**config["source"], "workers": workers}}, inline=False) == expected
