"""An inline run leaves the caller's random generators, and the caller's context, as they were."""

import random
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

import stagepipe
from stagepipe import Pipeline, RunError
from stagepipe.core import derive_seed
from stagepipe.runtime.execution.seeding import lazy_random, lazy_random_state
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


def draw_before_the_stage(_: Any) -> Any:
    """Run an inner pipeline before anything has drawn for the item."""
    with Pipeline(CONFIG, inline=True) as inner:
        first = next(iter(inner))
    return first, random.random(), np.random.normal(), random.random()  # noqa: NPY002


def test_a_pipeline_within_a_stage_that_draws_before_the_stage_does(expected):
    config = {**CONFIG, "stages": [{"name": "a", "uses": draw_before_the_stage}]}
    seed()
    with Pipeline(config, inline=True) as pipeline:
        found = list(pipeline)
    assert draw() == expected[0]
    with Pipeline(config) as pipeline:
        assert list(pipeline) == found


def draw_three(_: Any) -> Any:
    return random.random(), np.random.normal(), random.gauss()  # noqa: NPY002


def test_a_stage_without_reseeding_continues_its_draws_while_the_caller_draws_too(expected):
    epoch_seed = derive_seed(0, 0, "source", ())
    seed(epoch_seed & 0xFFFFFFFF)
    random.seed(epoch_seed)
    draws = [draw_three(0) for _ in range(4)]
    seed()
    config = {"source": {"uses": range(4)}, "stages": [{"name": "a", "uses": draw_three, "reseed": False}]}
    with Pipeline(config, inline=True) as pipeline:
        assert [(item, draw())[0] for item in pipeline] == draws
    assert draw() == expected[4]


def test_two_runs_on_two_threads_leave_the_generators_as_they_were(expected):
    seed()
    with Pipeline(CONFIG, inline=True) as one, Pipeline(CONFIG, inline=True) as other:
        threads = [threading.Thread(target=list, args=(pipeline,)) for pipeline in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert type(random._inst) is random.Random  # type: ignore[attr-defined]
    assert (lazy_random.is_waiting, lazy_random_state.is_waiting) == (False, False)


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


LAZY = """
import random, sys
import numpy as np
from stagepipe import Pipeline
from stagepipe.core import derive_seed
from stagepipe.runtime.execution.seeding import lazy_random, lazy_random_state
def list_ids():  # without a reference to a function
    values = random.random, np.random.normal, np.random.seed, type(random), type(np.random.mtrand), *sys.meta_path
    return [id(value) for value in values]
before = list_ids()
def look(item):
    waiting = lazy_random.is_waiting, lazy_random_state.is_waiting
    if item == 1:
        random.random()
    if item == 2:
        np.random.normal()
    return *waiting, lazy_random.is_waiting, lazy_random_state.is_waiting
config = {"source": {"uses": range(4)}, "stages": [{"name": "a", "uses": look}]}
with Pipeline(config, inline=True) as pipeline:
    for number, item in enumerate(pipeline):
        print(*map(int, item), end=" ")
        if number == 2:
            random.random(), np.random.normal()
    items = iter(pipeline)
    next(items)
    del items
assert list_ids() == before
"""


def test_a_generator_that_no_stage_uses_is_not_touched_and_the_functions_come_back():
    ran = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["1", "1", "1", "1", "1", "1", "0", "1", "1", "1", "1", "0", "1", "1", "1", "1"]


HELD = """
{imports}
import json, random
import numpy as np
from stagepipe import Pipeline
def draw(item):
    return {use}, random.random(), np.random.normal()
def draw_plainly(item):
    return {plain}, random.random(), np.random.normal()
random.seed(1), np.random.seed(1)
expected = [(random.random(), np.random.normal()) for _ in range(4)]
for function in (draw, draw_plainly):
    random.seed(1), np.random.seed(1)
    callers, items = [], []
    stages = [{{"name": "a", "uses": function}}]
    with Pipeline({{"source": {{"uses": range(3)}}, "stages": stages}}, inline=True) as pipeline:
        for item in pipeline:
            items.append(item)
            callers.append((random.random(), np.random.normal()))
    callers.append((random.random(), np.random.normal()))
    assert callers == expected
    print(json.dumps(items))
"""


@pytest.mark.parametrize(
    "imports, use, plain",
    [
        ("from random import random as held", "held()", "random.random()"),
        ("from random import randint as held", "held(0, 99)", "random.randint(0, 99)"),
        ("from numpy.random import rand as held", "held()", "np.random.rand()"),
        ("from numpy.random.mtrand import _rand as held", "held.rand()", "np.random.rand()"),
        ("from numpy.random import get_bit_generator as held", "held().random_raw()", "held().random_raw()"),
        ("import scipy.stats as held", "held.norm.rvs()", "held.norm.rvs()"),
    ],
)
def test_a_function_that_the_caller_has_imported_draws_the_same(imports, use, plain):
    """And the caller's generators go on as without the pipeline."""
    code = HELD.format(imports=imports, use=use, plain=plain)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    held, plainly = ran.stdout.splitlines()
    assert held == plainly


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
