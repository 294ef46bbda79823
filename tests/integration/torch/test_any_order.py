"""`order: any`: the items before a state is taken and after it is loaded are every item exactly once."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from stagepipe.torch import Loader
from tests.support.pipelines import batch, pipeline, plain, shuffle, stage, with_workers

UNBATCH = "stagepipe.stages.Unbatch"
SHORT = {"with_": {"most_s": 0.0005}}

ANY = {
    "generators": pipeline(
        stage("parts"), stage("nap_at_random", **SHORT), stage("two"), source=36, order="any", window=12
    ),
    "rows of batches": pipeline(
        stage("nap_at_random", **SHORT), batch(4), stage(UNBATCH), stage("two"), source=51, order="any", window=16
    ),
    "batches of rows of shuffled batches": pipeline(
        stage("parts"),
        stage("nap_at_random", **SHORT),
        stage("first", name="number"),
        shuffle(7),
        batch(3),
        stage(UNBATCH),
        stage("two"),
        batch(2),
        stage(UNBATCH, name="again"),
        source=40,
        order="any",
        window=14,
    ),
}


def count_items(items: Iterable[Any]) -> Counter[str]:
    return Counter(repr(plain(item)) for item in items)


def check(config: dict[str, Any], every: int) -> None:
    expected = count_items(Loader(config, inline=True))
    assert len(list(expected.elements())) >= 100
    before, states = [], []
    with Loader(with_workers(config, 2)) as loader:
        for item in loader:
            before.append(item)
            states.append(loader.state_dict())
        assert count_items(before) == expected
        for number, state in list(enumerate(states, 1))[::every]:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert count_items([*before[:number], *loader]) == expected, f"after item {number}: {state}"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("shape", ANY)
def test_resumed_at_every_ninth_position(shape):
    check(ANY[shape], 9)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", ANY)
def test_resumed_at_every_position(shape):
    check(ANY[shape], 1)


@pytest.mark.timeout(60)
def test_a_resumed_run_can_be_resumed_again():
    config = ANY["batches of rows of shuffled batches"]
    expected = count_items(Loader(config, inline=True))
    found: list[Any] = []
    with Loader(with_workers(config, 2)) as loader:
        while len(found) < 1000:
            part = list(itertools.islice(loader, 13))
            found += part
            if len(part) < 13:
                break
            loader.load_state_dict(loader.state_dict())
    assert count_items(found) == expected
