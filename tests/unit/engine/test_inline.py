"""An inline run leaves the caller's random generators, and the caller's context, as they were."""

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import stagepipe
from stagepipe import Pipeline, RunError
from tests.support.random_sources import noisy_parts, stream

CONFIG = {"source": {"uses": stream, "with": {"count": 4}}, "stages": [{"name": "a", "uses": noisy_parts}]}


def draw() -> tuple[float, ...]:
    """Draw an odd number of normal values: Python's and NumPy's generators then keep a second one."""
    return random.gauss(), random.random(), np.random.normal(), torch.rand(1).item()  # noqa: NPY002 - what is tested


def seed(value: int = 1) -> None:
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002
    torch.manual_seed(value)


class Drawing:
    def __init__(self) -> None:
        seed(2)
        draw()

    def __call__(self, item: Any) -> Any:
        return item, draw()


def fail(item: Any) -> None:
    seed(2)
    raise ValueError(item)


def nested(item: Any) -> Any:
    before = random.random()
    with Pipeline(CONFIG, inline=True) as inner:
        first = next(iter(inner))
    return before, random.random(), first, stagepipe.context().item


@pytest.fixture
def expected() -> list[Any]:
    seed()
    return [draw() for _ in range(12)]


@pytest.mark.parametrize("reseed", [True, False])
def test_the_callers_draws_are_those_without_the_pipeline(expected, reseed):
    config = {**CONFIG, "stages": [{"name": "a", "uses": Drawing, "reseed": reseed}]}
    seed()
    draws = [draw()]
    with Pipeline(config, inline=True) as pipeline:
        draws.append(draw())
        for _ in range(2):
            draws.extend(draw() for _ in pipeline)
        draws.append(draw())
    assert [*draws, draw()] == expected
    with pytest.raises(RuntimeError, match="only inside a stage"):
        stagepipe.context()


def test_nor_does_a_failure_or_an_early_end_change_them(expected):
    seed()
    with pytest.raises(RunError), Pipeline({**CONFIG, "stages": [{"name": "a", "uses": fail}]}, inline=True) as failing:
        next(iter(failing))
    with Pipeline(CONFIG, inline=True) as pipeline:
        next(iter(pipeline))
    with (
        pytest.raises(ValueError, match="1"),
        Pipeline({"source": {"uses": fail, "with": {"item": 1}}}, inline=True) as unreadable,
    ):
        list(unreadable)
    assert [draw() for _ in range(12)] == expected


def test_stages_that_are_not_reseeded_draw_on():
    config = {**CONFIG, "stages": [{"name": "a", "uses": Drawing, "reseed": False}]}
    with Pipeline(config, inline=True) as pipeline:
        draws = [item[1] for item in pipeline]
    assert len(set(draws)) == len(draws)


def test_an_inline_pipeline_within_a_stage_of_one(expected):
    plain = {**CONFIG, "stages": [{"name": "a", "uses": lambda _: (random.random(), random.random())}]}
    seed()
    with Pipeline({**CONFIG, "stages": [{"name": "a", "uses": nested}]}, inline=True) as pipeline:
        results = list(pipeline)
    assert draw() == expected[0]
    with Pipeline(plain, inline=True) as pipeline:
        assert [tuple(result[:2]) for result in results] == list(pipeline)
    assert [result[3] for result in results] == [(number,) for number in range(4)]


def test_two_runs_in_turn(expected):
    seed()
    with Pipeline(CONFIG, inline=True) as one, Pipeline(CONFIG, inline=True) as other:
        assert [first == second for first, second in zip(one, other, strict=True)] == [True] * 8
    assert [draw() for _ in range(12)] == expected


def test_a_torch_that_a_stage_imported_is_as_after_a_plain_import():
    code = """
import sys
from stagepipe import Pipeline
def late(item):
    import torch
    return torch.initial_seed()
with Pipeline({"source": {"uses": range(2)}, "stages": [{"name": "a", "uses": late}]}, inline=True) as pipeline:
    seeds = list(pipeline)
import torch
print(len({*seeds, torch.initial_seed()}), torch.cuda._lazy_seed_tracker.call_order)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["3", "[]"]


def test_a_seed_for_cuda_waits_as_the_caller_left_it():
    torch.cuda.manual_seed_all(3)
    queued = torch.cuda._lazy_seed_tracker.manual_seed_all_cb
    with Pipeline(CONFIG, inline=True) as pipeline:
        list(pipeline)
    assert torch.cuda._lazy_seed_tracker.manual_seed_all_cb is queued


def test_workers_leave_them_too(expected):
    seed()
    with Pipeline({"source": {"uses": range(3)}}) as pipeline:
        len(pipeline)
        pipeline.state_dict()
        list(pipeline)
    assert [draw() for _ in range(12)] == expected


def test_the_machine_is_not_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Pipeline(
        {"source": {"uses": [1, 2]}, "stages": [{"name": "negate", "uses": "operator.neg"}]}, inline=True
    ) as p:
        assert list(p) == [-1, -2]
    assert list(tmp_path.iterdir()) == []
