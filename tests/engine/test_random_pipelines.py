"""Random pipelines, of the shapes that the executable model of the protocol tries, against the plain run."""

import itertools
import random
import time
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from tests.zoo.pipelines import batch, pipeline, plain, shuffle, stage

BUDGET_S = 40.0


def shape(rnd: random.Random) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(rnd.randint(1, 4)):
        kind = rnd.random()
        name = f"s{number}"
        if kind < 0.2:
            found.append({**batch(rnd.randint(1, 7), drop_last=rnd.random() < 0.3), "name": name})
            if rnd.random() < 0.5:
                found.append(stage("stagepipe.stages.Unbatch", name=f"u{number}", workers=rnd.randint(1, 2)))
        elif kind < 0.35:
            found.append(shuffle(rnd.randint(1, 6), name=name))
        else:
            uses = rnd.choice(["mapped", "filtered", "generated", "same", "delayed"])
            where = {"fuse": True} if rnd.random() < 0.2 else {"workers": rnd.choice([1, 1, 2, 3])}
            with_ = {} if uses == "same" else {"with_": {"salt": rnd.randint(0, 99)}}
            found.append(stage(uses, name=name, **with_, **where))
    return found


def trial(seed: int) -> bool:
    """Two whole epochs, one broken off between them, one closed in the middle."""
    rnd = random.Random(seed)
    config = pipeline(
        *shape(rnd),
        source=rnd.randint(0, 40),
        seed=seed,
        window=rnd.choice(["auto", 1, 2, rnd.randint(3, 20)]),
        transport={"mode": rnd.choice(["auto", "pipe", "shared_memory"])},
    )
    try:
        with Pipeline(config, inline=True) as oracle:
            want = [[plain(item) for item in oracle] for _ in range(5)]
    except RunError:
        return False  # batches of batches of different lengths
    where = f"seed {seed}: {[(each['uses'].rpartition('.')[2], each.get('workers', 1)) for each in config['stages']]}"
    with Pipeline(config) as running:
        for epoch in range(5):
            stop = None if epoch in {0, 3} else rnd.randint(min(1, len(want[epoch])), len(want[epoch]))
            found = [plain(item) for item in itertools.islice(running, stop)]
            assert found == want[epoch][:stop], f"{where}, epoch {epoch}"
    return True


@pytest.mark.timeout(120)
def test_random_pipelines_give_what_the_plain_run_gives():
    begin, tried = time.monotonic(), 0
    for seed in range(1000):
        tried += trial(seed)
        if time.monotonic() - begin > BUDGET_S / 2:
            break
    print(f"{tried} pipelines")  # noqa: T201 - shown with -s
    assert tried >= 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_random_pipelines():
    print(sum(trial(seed) for seed in range(1000, 1100)), "pipelines of five epochs")  # noqa: T201 - shown with -s
