"""A state belongs to its config: a config that yields other items is refused, with the difference; others are not."""

import inspect
import json
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp

from stagepipe import UsageError
from stagepipe.torch import Loader
from tests.support.pipelines import batch, pipeline, plain, shuffle, stage

CONFIG = pipeline(stage("plus", with_={"amount": 2}), stage("light_draws"), batch(2), source=12, seed=3)


def state_of(config: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return Loader(config, **keys).state_dict()


@pytest.mark.parametrize(
    "other, difference",
    [
        ({**CONFIG, "seed": 4}, "seed: saved 3, now 4"),
        ({**CONFIG, "order": "any"}, "order: saved source, now any"),
        (pipeline(*CONFIG["stages"], source=13, seed=3), "source.with.count: saved 12, now 13"),
        (
            pipeline(*CONFIG["stages"], source={"uses": range(12)}, seed=3),
            "source.uses: saved stagepipe.sources.numbers, now ",
        ),
        (
            pipeline(stage("plus", with_={"amount": 3}), *CONFIG["stages"][1:], source=12, seed=3),
            "stages.plus.with.amount: saved 2, now 3",
        ),
        (pipeline(*CONFIG["stages"][:2], batch(4), source=12, seed=3), "stages.batch.with.size: saved 2, now 4"),
        (pipeline(*CONFIG["stages"], shuffle(2), source=12, seed=3), "stages.shuffle.uses: saved not set, now "),
        (
            pipeline(*CONFIG["stages"][1:], source=12, seed=3),
            "stages: saved plus light_draws batch, now light_draws batch",
        ),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_a_state_of_another_config_is_refused_with_the_difference(other, difference):
    with pytest.raises(UsageError, match="this state was saved with a different config") as caught:
        Loader(other).load_state_dict(state_of(CONFIG))
    assert difference in str(caught.value)


def test_keys_that_change_no_item_may_change():
    stages = [{**CONFIG["stages"][0], "workers": 3, "threads": 2, "mutable": True}, *CONFIG["stages"][1:]]
    other = {**CONFIG, "stages": stages, "transport": {"mode": "pipe"}, "memory": "64MiB", "window": 5}
    Loader(other).load_state_dict(state_of(CONFIG))
    with pytest.raises(UsageError, match="limit: saved None, now 5"):
        Loader(other, limit=5).load_state_dict(state_of(CONFIG))


def test_long_arguments_are_distinguished_and_the_state_stays_small():
    names = [f"class {number}" for number in range(1000)]
    first, second = (
        pipeline(stage("labelled", with_={"labels": text}), source=1) for text in (names, [*names[:-1], "x"])
    )
    state = state_of(first)
    assert len(json.dumps(state)) < 1000
    Loader(first).load_state_dict(state)
    with pytest.raises(UsageError, match="labels"):
        Loader(second).load_state_dict(state)


@pytest.mark.parametrize("wrong", [{}, {"epoch": 3}, "state", None])
def test_an_invalid_state_is_refused(wrong):
    with pytest.raises(UsageError, match="pass the return value of state_dict"):
        Loader(CONFIG).load_state_dict(wrong)


def test_a_state_of_another_version_is_refused():
    with pytest.raises(UsageError, match="has version 99, expected version 1"):
        Loader(CONFIG).load_state_dict({**state_of(CONFIG), "version": 99})


@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")
@pytest.mark.timeout(60)
def test_torchs_distributed_checkpoint_saves_and_loads_a_loader(tmp_path):
    single = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}  # older: found by itself
    with Loader(CONFIG) as loader:
        items = iter(loader)
        next(items)
        dcp.save({"loader": loader}, checkpoint_id=tmp_path / "step", **single)
        rest = [plain(item) for item in items]
    with Loader(CONFIG) as loader:
        dcp.load({"loader": loader}, checkpoint_id=tmp_path / "step", **single)
        assert [plain(item) for item in loader] == rest
