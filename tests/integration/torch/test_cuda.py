"""The loader on a GPU. Runs only where there is one; test_pinning covers what a CPU can show."""

import numpy as np
import pytest
import torch

from stagepipe.torch import Loader
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

NBYTES = 1_200_000


def config(count: int = 40):
    return pipeline(stage("filled", with_={"nbytes": NBYTES}), source=count)


def test_pin_memory_yields_tensors_over_locked_pages():
    with Loader(config(), pin_memory=True) as loader:
        for number, item in enumerate(loader):
            assert item["image"].is_pinned()
            assert int(item["image"][-1]) == number


def test_device_yields_correct_tensors_on_the_gpu_for_three_epochs():
    with Loader(config(), device="cuda") as loader:
        for _ in range(3):
            images = [item["image"] for item in loader]
            assert all(tensor.is_cuda for tensor in images)
            assert [int(tensor.float().mean()) for tensor in images] == list(range(40))


def test_a_block_is_not_reused_before_its_copy_has_finished():
    """Keep the current stream busy, so that copies queue up while the workers fill block after block."""
    with Loader(config(200), device="cuda") as loader:
        busy = torch.ones(4096, 4096, device="cuda")
        sums = []
        for item in loader:
            busy = busy @ busy * 1e-4
            sums.append(item["image"].double().sum())
    assert [int(total) // NBYTES for total in sums] == [number % 251 for number in range(200)]


def test_a_stage_on_a_gpu_sees_one_gpu_and_its_tensors_arrive_by_shared_memory():
    stages = [stage("on_the_gpu", device="cuda")]
    with Loader(pipeline(*stages, source=8)) as loader:
        for number, item in enumerate(loader):
            np.testing.assert_array_equal(item, np.full(100_000, number, np.float32))
    assert loader.report().hops[1].bytes.zero_copy == 8 * 400_000
