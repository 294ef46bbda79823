"""`run_stage`: its results are those of workers, and what would fail in a worker fails here."""

import random

import numpy as np
import pytest
import torch

import stagepipe
from stagepipe import ConfigError, RunError, UsageError, defer
from stagepipe.stages import Batch
from stagepipe.testing import run_stage


def add_noise(item):
    own, numpys = stagepipe.context().rng.normal(), float(np.random.rand())  # noqa: NPY002 - what users call
    return {**item, "draws": (own, random.random(), numpys)}


def name_type(value):
    return type(value).__name__


def write_first(array):
    array[0] = 1
    return array


def yield_twice(number):
    yield number
    yield number + stagepipe.context().rng.integers(1000)


def test_results_are_those_of_workers_of_this_name_seed_and_epoch():
    items = [{"x": number} for number in range(4)]
    config = {
        "seed": 17,
        "source": {"uses": items},
        "stages": [{"name": "noise", "uses": add_noise, "workers": 2}],
    }
    with stagepipe.Pipeline(config) as pipeline:
        pipeline.set_epoch(3)
        of_workers = list(pipeline)
    assert run_stage(add_noise, items, seed=17, epoch=3, name="noise") == of_workers
    assert run_stage(add_noise, items, seed=18, epoch=3, name="noise") != of_workers
    assert run_stage(add_noise, items, seed=17, epoch=3) != of_workers


@pytest.mark.parametrize("size", [3, 10_000])
def test_write_into_an_input_array_fails(size):
    with pytest.raises(ValueError, match="read-only") as raised:
        run_stage(write_first, [np.zeros(size)])
    assert isinstance(raised.value, RunError)


@pytest.mark.parametrize("size", [3, 10_000])
def test_write_into_an_input_tensor_is_noticed(size):
    with pytest.raises(UsageError, match="stage scale, item 1: the stage wrote to its input"):
        run_stage(lambda tensor: tensor.mul_(2), [torch.zeros(size), torch.ones(size)], name="scale")


def test_mutable_input_may_be_written_and_the_callers_item_stays():
    item = np.zeros(3)
    [result] = run_stage(write_first, [item], mutable=True)
    assert (result.tolist(), item.tolist()) == ([1, 0, 0], [0, 0, 0])


def test_field_into_and_when_act_as_in_a_config():
    items = [{"word": "a", "kind": 1}, {"word": "b", "kind": 2}]
    results = run_stage(str.upper, items, field="word", into="upper", when={"kind": 2})
    assert results == [{"word": "a", "kind": 1}, {"word": "b", "kind": 2, "upper": "B"}]
    [item] = run_stage(name_type, [{"image": np.zeros((2, 2, 3), np.uint8)}], field="image", as_="pil", into="type")
    assert item["type"] == "Image"


def test_lists_classes_generators_order_points_and_paths_run():
    assert run_stage(lambda numbers: [len(numbers)] * len(numbers), [1, 2, 3], batch_size=2) == [2, 2, 1]
    assert [batch.tolist() for batch in run_stage(defer(Batch, size=2), [1, 2, 3])] == [[1, 2], [3]]
    assert run_stage(yield_twice, [5], seed=1)[0] == 5
    assert len(run_stage(yield_twice, [5, 6])) == 4
    assert run_stage("operator.neg", [1]) == [-1]
    [small] = run_stage(defer("stagepipe.stages.image.Resize", size=2), [np.zeros((4, 4, 3), np.uint8)])
    assert small.shape == (2, 2, 3)


def test_failed_items_fail_or_are_skipped():
    with pytest.raises(ZeroDivisionError, match="stage divide, worker 0, item 1"):
        run_stage(lambda number: 1 / number, [1, 0], name="divide")
    assert run_stage(lambda number: 1 / number, [1, 0, 2], on_error="skip") == [1, 0.5]


def test_missing_return_fails():
    with pytest.raises(RunError, match="did you forget `return`"):
        run_stage(lambda _: None, [1])


def test_result_that_cannot_be_pickled_fails():
    with pytest.raises(UsageError, match="stage stage, result 0: it cannot travel to the next process"):
        run_stage(lambda number: lambda: number, [1])


def test_wrong_option_is_reported_with_a_hint():
    with pytest.raises(ConfigError, match=r"unknown key `wrkers`(.|\n)*did you mean `workers`"):
        run_stage(abs, [1], wrkers=2)


def test_callers_generators_are_untouched():
    random.seed(5)
    expected = random.Random(5).random()
    run_stage(add_noise, [{}])
    assert random.random() == expected
