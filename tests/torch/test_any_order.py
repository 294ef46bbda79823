"""`order: any`: what is yielded before a state is taken, and after it is loaded, is each item exactly once."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from stagepipe.torch import Loader
from tests.zoo.pipelines import batch, pipeline, plain, shuffle, stage, with_workers

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


def in_any_order(items: Iterable[Any]) -> Counter[str]:
    return Counter(repr(plain(item)) for item in items)


def check(config: dict[str, Any], every: int) -> None:
    want = in_any_order(Loader(config, inline=True))
    assert len(list(want.elements())) >= 100
    before, taken = [], []
    with Loader(with_workers(config, 2)) as loader:
        for item in loader:
            before.append(item)
            taken.append(loader.state_dict())
        assert in_any_order(before) == want
        for number, state in list(enumerate(taken, 1))[::every]:
            loader.load_state_dict(json.loads(json.dumps(state)))
            assert in_any_order([*before[:number], *loader]) == want, f"behind item {number}: {state}"


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
def test_states_of_resumed_runs_are_states_too():
    config = ANY["batches of rows of shuffled batches"]
    want = in_any_order(Loader(config, inline=True))
    found: list[Any] = []
    with Loader(with_workers(config, 2)) as loader:
        while len(found) < 1000:
            some = list(itertools.islice(loader, 13))
            found += some
            if len(some) < 13:
                break
            loader.load_state_dict(loader.state_dict())
    assert in_any_order(found) == want
