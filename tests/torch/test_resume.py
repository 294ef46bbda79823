"""What was yielded before a state was taken, and after it was loaded, is exactly one run's sequence."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from stagepipe.torch import Loader
from tests.zoo.pipelines import batch, pipeline, plain, shuffle, stage, with_workers

pytestmark = pytest.mark.timeout(100)

UNBATCH = "stagepipe.stages.Unbatch"

SHAPES = {
    "maps and batches": pipeline(stage("light_draws"), batch(2), stage("same"), source=205, seed=3),
    "a generator, skips, a shuffle, batches": pipeline(
        stage("skip_thirds"),
        stage("light_draws"),
        stage("random_parts"),
        shuffle(7),
        stage("draw_again"),
        batch(2),
        source=220,
        seed=5,
    ),
    "batches opened again, in the middle of their rows": pipeline(
        stage("double"), batch(4), stage(UNBATCH), stage("two"), source=52, seed=7
    ),
}


def positions(loader: Loader, epochs: int) -> Iterator[tuple[dict[str, Any], int, int]]:
    """The state before the first item, behind each, and at the end of each epoch; with where that is."""
    for epoch in range(epochs):
        yield loader.state_dict(), epoch, 0
        for number, _ in enumerate(loader, 1):
            yield loader.state_dict(), epoch, number


def inline(config: dict[str, Any], epochs: int) -> list[list[Any]]:
    with Loader(config, inline=True) as loader:
        return [[plain(item) for item in loader] for _ in range(epochs)]



@pytest.mark.parametrize("shape", SHAPES)
def test_two_epochs_resumed_at_every_position(shape):
    want = inline(SHAPES[shape], 3)
    with Loader(with_workers(SHAPES[shape], 2)) as first:
        taken = list(positions(first, 2))
    assert len(taken) >= 200
    with Loader(SHAPES[shape]) as second:
        for at, (state, epoch, number) in enumerate(taken):
            second.load_state_dict(json.loads(json.dumps(state)))
            few = None if at % 25 == 0 else 5
            found = [plain(item) for item in itertools.islice(second, few)]
            assert found == want[epoch][number:][:few], f"epoch {epoch}, behind item {number}"
        second.load_state_dict(taken[-1][0])
        assert list(second) == []
        assert [plain(item) for item in second] == want[2], "and then a whole epoch"


ANY = {
    "generators": pipeline(stage("parts"), stage("nap_at_random"), stage("two"), source=36, order="any"),
    "rows of batches": pipeline(
        stage("nap_at_random"), batch(4), stage(UNBATCH), stage("two"), source=51, order="any", window=16
    ),
    "batches of rows of shuffled batches": pipeline(
        stage("parts"),
        stage("nap_at_random"),
        stage("first", name="number"),
        shuffle(7),
        batch(3),
        stage(UNBATCH),
        stage("two"),
        batch(2),
        stage(UNBATCH, name="again"),
        source=40,
        order="any",
    ),
}


def in_any_order(items: Iterable[Any]) -> Counter[str]:
    return Counter(repr(plain(item)) for item in items)


@pytest.mark.parametrize("shape", ANY)
def test_any_order_resumed_at_every_position_gives_each_item_exactly_once(shape):
    config = with_workers(ANY[shape], 3)
    want = in_any_order(itertools.chain(*inline(config, 1)))
    assert len(list(want.elements())) >= 100
    taken, before = [], []
    with Loader(config) as first:
        for item in first:
            before.append(item)
            taken.append(first.state_dict())
    assert in_any_order(before) == want
    with Loader(with_workers(ANY[shape], 2)) as second:
        for number, state in enumerate(taken, 1):
            second.load_state_dict(json.loads(json.dumps(state)))
            assert in_any_order([*before[:number], *second]) == want, f"behind item {number}: {state}"
