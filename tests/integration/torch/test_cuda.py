"""The loader and stages on a GPU. Runs only where there is one; test_pinning covers what a CPU can show."""

import gc
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stagepipe import Pipeline
from stagepipe.torch import Loader
from stagepipe.torch.transfer import CudaHostMemoryRegistrar, PinnedBlocks
from tests.support.kills import kill
from tests.support.pipelines import batch, outputs, pipeline, stage

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

NBYTES = 1_200_000
BUSY_CYCLES = 20_000_000
"""How long the device is kept busy per item: about 10 ms, time for the workers to write many blocks."""


def config(count: int = 40, **keys: Any) -> dict[str, Any]:
    return pipeline(stage("filled", with_={"nbytes": NBYTES}), source=count, **keys)


def sums(tensors: list[torch.Tensor]) -> list[int]:
    """Return the number that each tensor is filled with. A tensor that holds bytes of another item has none."""
    assert all(tensor.is_cuda for tensor in tensors)
    return [int(tensor.min()) if tensor.min() == tensor.max() else -1 for tensor in tensors]


def test_pin_memory_yields_tensors_over_locked_pages():
    with Loader(config(), pin_memory=True) as loader:
        for number, item in enumerate(loader):
            assert item["image"].is_pinned()
            assert int(item["image"][-1]) == number


def test_device_yields_correct_tensors_on_the_gpu_for_three_epochs():
    with Loader(config(), device="cuda") as loader:
        for _ in range(3):
            assert sums([item["image"] for item in loader]) == list(range(40))


def test_a_block_is_not_reused_before_its_copy_to_the_device_has_finished():
    """Keep the copy stream busy, so that copies queue up while the workers fill block after block."""
    with Loader(config(150), device="cuda") as loader:
        tensors = []
        for item in loader:
            tensors.append(item["image"])
            with torch.cuda.stream(loader._transfer._copy_stream):
                torch.cuda._sleep(BUSY_CYCLES)
        assert sums(tensors) == list(range(150))


@pytest.mark.parametrize("side_stream", [False, True], ids=["current stream", "side stream"])
def test_a_block_is_not_reused_before_the_callers_copy_has_finished(side_stream):
    """The usual loop: `batch.to("cuda", non_blocking=True)`, a step that keeps the device busy, the next batch."""
    stream = torch.cuda.Stream() if side_stream else torch.cuda.current_stream()
    with Loader(config(150), pin_memory=True) as loader:
        tensors = []
        for item in loader:
            torch.cuda._sleep(BUSY_CYCLES)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(BUSY_CYCLES)
                tensors.append(item["image"].to("cuda", non_blocking=True))
            torch.cuda.current_stream().wait_stream(stream)
        assert sums(tensors) == list(range(150))


@pytest.mark.parametrize("keys", [{"device": "cuda"}, {"pin_memory": True}], ids=["device", "pin_memory"])
def test_the_deaths_of_workers_change_no_tensor(keys):
    """After each, the arenas are mapped again: CUDA must not read the pages of an earlier mapping."""
    with Loader(config(200, window=8), **keys) as loader:
        tensors = []
        for number, item in enumerate(loader):
            assert item["image"].is_cuda or item["image"].is_pinned()
            tensors.append(item["image"].to("cuda", non_blocking=True))
            del item
            if number % 25 == 24:
                kill(loader.pipeline, number // 25 % 2)
        assert sums(tensors) == list(range(200))
    assert len(loader.report().restarts) >= 6


def test_loaders_that_are_not_closed_leave_no_registration():
    """A stale one would make CUDA refuse the next loader's blocks, which get the same addresses, or read old pages."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            loader = Loader(config(10), device="cuda")
            assert sums([item["image"] for item in loader]) == list(range(10))
            del loader
            gc.collect()


def test_a_refused_registration_leaves_no_error_behind():
    no_memory = SimpleNamespace(block_id=(0, 0), base=None, size=1 << 20, address=1 << 20)
    blocks = PinnedBlocks(lambda address, nbytes: no_memory, CudaHostMemoryRegistrar())
    with pytest.warns(RuntimeWarning, match="CUDA refused to lock 1048576 bytes"):
        assert blocks.pin(1 << 20, 1 << 20) is None
    assert float(torch.ones(3, device="cuda").sum()) == 3


def test_a_stage_on_a_gpu_sees_one_gpu_and_its_tensors_arrive_by_shared_memory():
    stages = [stage("on_the_gpu", device="cuda")]
    with Loader(pipeline(*stages, source=8)) as loader:
        for number, item in enumerate(loader):
            np.testing.assert_array_equal(item, np.full(100_000, number, np.float32))
    assert loader.report().hops[1].bytes.zero_copy == 8 * 400_000


def test_a_stage_with_device_cpu_sees_no_gpu():
    assert outputs(pipeline(stage("cuda_is_available", device="cpu"), source=2)) == [False, False]


FEATURES = pipeline(
    stage("image", with_={"size": 256}),
    stage("GpuFeatures", name="features", device="cuda", workers=2),
    stage("mean_on_the_gpu", name="mean", fuse=True),
    batch(4),
    source=48,
    window=8,
)


def test_two_workers_on_a_gpu_yield_the_items_of_an_inline_run():
    with Pipeline(FEATURES, inline=True) as running:
        expected = list(running)
    with Loader(FEATURES, device="cuda") as loader:
        found = list(loader)
    assert len(found) == len(expected) == 12
    for item, expected_item in zip(found, expected, strict=True):
        assert item["id"].tolist() == torch.as_tensor(expected_item["id"]).tolist()
        for name in ("features", "mean", "image"):
            assert item[name].is_cuda
            torch.testing.assert_close(item[name], torch.as_tensor(expected_item[name]).to("cuda"))


def test_a_killed_worker_on_a_gpu_is_replaced():
    with Pipeline(FEATURES) as running:
        found = []
        for number, item in enumerate(running):
            found += item["id"].tolist()
            if number == 4:
                kill(running, 2)
        assert found == list(range(48))
        assert [restart.stage in {"features", "mean"} for restart in running.report().restarts] == [True]


def test_random_numbers_of_the_gpu_are_reproducible():
    """Also in the first item of a worker, during which CUDA starts."""
    draws = pipeline(stage("draws_on_the_gpu", device="cuda"), source=12, seed=5)
    several = pipeline(stage("draws_on_the_gpu", device="cuda", workers=3), source=12, seed=5)
    expected = outputs(draws)
    assert len({str(item["draws"]) for item in expected}) == 12
    assert outputs(several) == expected


def test_a_kernel_that_fails_costs_one_item():
    """An assertion in a kernel breaks CUDA for the rest of the worker's process."""
    config = pipeline(stage("breaks_the_device", device="cuda", on_error="skip", retries=0), source=12)
    with Pipeline(config) as running:
        assert list(running) == [item for item in range(12) if item != 5]
        assert len(running.dead_letters) == 1
