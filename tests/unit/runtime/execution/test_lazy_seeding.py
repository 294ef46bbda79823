"""Draws are the same, bit for bit, whether the generators are seeded before each item or at their first use."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch  # noqa: F401 - the fork server imports what this process has imported

from stagepipe import Pipeline
from tests.support.draws import NUMPY, PYTHON, draw_torch


def run(*arguments: str) -> str:
    ran = subprocess.run([sys.executable, "-W", "ignore", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def drawn(mode: str, group: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("-m", "tests.support.draws", mode, group, "10"))
    return found


@pytest.mark.parametrize(
    "group, count",
    [
        ("python", len(PYTHON)),
        ("numpy", len(NUMPY)),
        ("pipelines", 10),
        pytest.param("libraries", 13, marks=pytest.mark.slow),
    ],
)
def test_draws_equal_those_after_seeding_before_each_item(group, count):
    expected = drawn("eager", group)
    assert len(expected) == count
    assert drawn("lazy", group) == expected


WITHOUT_A_DRAW = """
import random
from stagepipe.runtime import install_lazy_seeding
install_lazy_seeding()
from tests.support.draws import count_waiting, make_stage
stage = make_stage(lambda item: random.random() if item == 2 else item)
print(stage.invoke(((0,),), [0])[0], stage.invoke(((1,),), [1])[0], count_waiting())
stage.invoke(((2,),), [2])[0]
print(count_waiting())
"""


def test_only_a_generator_that_is_used_is_seeded():
    assert run("-c", WITHOUT_A_DRAW).split() == ["0", "1", "2", "1"]


PICKLED = """
from stagepipe.runtime import install_lazy_seeding
install_lazy_seeding()
import random, pickle, cloudpickle
import numpy as np, torch
from stagepipe.core import watch_torch_use
watch_torch_use()
for function in (lambda: random.random(), lambda: np.random.mtrand.rand(), lambda: torch.rand(1)):
    pickle.loads(cloudpickle.dumps(function))()
assert pickle.loads(cloudpickle.dumps([np.random.mtrand, torch.nn, random])) == [np.random.mtrand, torch.nn, random]
np.random.mtrand._rand = other = np.random.RandomState(3)
assert np.random.mtrand._rand is other
"""


def test_modules_of_generators_can_be_pickled_by_cloudpickle_and_their_generator_replaced():
    run("-c", PICKLED)


HELD_BEFORE = """
{imports}
import sys
from stagepipe.runtime import install_lazy_seeding
is_lazy = install_lazy_seeding() if len(sys.argv) > 1 else False
from tests.support.draws import make_stage
stage = make_stage(lambda _: {use}())
print(is_lazy, [stage.invoke(((number,),), [number])[0] for number in range(3)])
"""


@pytest.mark.parametrize(
    "imports, use",
    [
        ("from random import random", "random"),
        ("from random import getrandbits as draw", "lambda: draw(9)"),
        ("from numpy.random import rand", "rand"),
        ("from numpy.random.mtrand import _rand", "_rand.rand"),
    ],
)
def test_a_function_imported_before_keeps_seeding_at_once(imports, use):
    """It is bound to the generator itself, and its draws would be missed."""
    code = HELD_BEFORE.format(imports=imports, use=f"({use})")
    found = run("-c", code, "lazy")
    assert found == run("-c", code)
    assert found.startswith("False")


def get_draw_functions(_: Any) -> tuple[str, str]:
    import random

    import numpy as np

    return type(random.random).__name__, type(np.random.rand).__name__


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_are_lazy_by_either_start(start):
    stage = {"name": "a", "uses": get_draw_functions}
    with Pipeline({"source": {"uses": range(1)}, "stages": [stage], "start": start}) as pipeline:
        assert list(pipeline) == [("function", "function")]


def test_a_worker_whose_stage_has_not_used_torch_does_not_seed_it():
    """The server has imported it, because this process has. From the first use on its draws are the item's."""
    assert "torch" in sys.modules
    config = {"source": {"uses": range(3)}, "stages": [{"name": "a", "uses": draw_torch}]}
    with Pipeline(config) as pipeline, Pipeline(config, inline=True) as inline:
        (is_unused, *drawn), (_, *expected) = list(pipeline), list(inline)
    assert is_unused
    assert drawn == expected


def test_this_process_is_left_as_it_is():
    assert get_draw_functions(0) != ("function", "function")
