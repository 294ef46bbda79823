"""Random pipelines, with the shapes of the executable protocol model, yield what an inline run yields."""

import itertools
import random
import time
from typing import Any

import pytest

from stagepipe import Pipeline, RunError
from tests.support.pipelines import batch, pipeline, plain, shuffle, stage

BUDGET_S = 40.0


def make_stages(rnd: random.Random) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = []
    for number in range(rnd.randint(1, 4)):
        kind = rnd.random()
        name = f"s{number}"
        if kind < 0.2:
            stages.append({**batch(rnd.randint(1, 7), drop_last=rnd.random() < 0.3), "name": name})
            if rnd.random() < 0.5:
                stages.append(stage("stagepipe.stages.Unbatch", name=f"u{number}", workers=rnd.randint(1, 2)))
        elif kind < 0.35:
            stages.append(shuffle(rnd.randint(1, 6), name=name))
        else:
            uses = rnd.choice(["mapped", "filtered", "generated", "same", "delayed"])
            keys = {"fuse": True} if rnd.random() < 0.2 else {"workers": rnd.choice([1, 1, 2, 3])}
            with_ = {} if uses == "same" else {"with_": {"salt": rnd.randint(0, 99)}}
            stages.append(stage(uses, name=name, **with_, **keys))
    return stages


def run_case(seed: int) -> bool:
    """Run two whole epochs and three that are stopped early. Return False where the inline run fails."""
    rnd = random.Random(seed)
    config = pipeline(
        *make_stages(rnd),
        source=rnd.randint(0, 40),
        seed=seed,
        window=rnd.choice(["auto", 1, 2, rnd.randint(3, 20)]),
        transport={"mode": rnd.choice(["auto", "pipe", "shared_memory"])},
    )
    try:
        with Pipeline(config, inline=True) as oracle:
            expected = [[plain(item) for item in oracle] for _ in range(5)]
    except RunError:
        return False  # batches of batches of different lengths
    stages = [(entry["uses"].rpartition(".")[2], entry.get("workers", 1)) for entry in config["stages"]]
    with Pipeline(config) as running:
        for epoch in range(5):
            stop = None if epoch in {0, 3} else rnd.randint(min(1, len(expected[epoch])), len(expected[epoch]))
            items = [plain(item) for item in itertools.islice(running, stop)]
            assert items == expected[epoch][:stop], f"seed {seed}: {stages}, epoch {epoch}"
    return True


@pytest.mark.timeout(120)
def test_random_pipelines_yield_what_the_inline_run_yields():
    started_s, case_count = time.monotonic(), 0
    for seed in range(1000):
        case_count += run_case(seed)
        if time.monotonic() - started_s > BUDGET_S / 2:
            break
    print(f"{case_count} pipelines")  # noqa: T201 - shown with -s
    assert case_count >= 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_random_pipelines():
    print(sum(run_case(seed) for seed in range(1000, 1100)), "pipelines of five epochs")  # noqa: T201 - shown with -s
