"""A loader yields an epoch an iteration, as tensors over shared memory that live as long as anybody holds them."""

import gc
import itertools
import os
import warnings
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from stagepipe import Pipeline, UsageError
from stagepipe.torch import Loader
from tests.zoo.pipelines import batch, pipeline, shuffle, stage

pytestmark = pytest.mark.timeout(60)

IMAGES = pipeline(stage("megabyte"), source=24)
BATCHES = pipeline(stage("to_dict"), batch(4), source=18)


def sums(items: Any) -> list[tuple[int, int]]:
    return [(item["id"], int(item["image"].sum())) for item in items]


def mapped_over_an_arena(tensor: torch.Tensor) -> bool:
    address = tensor.data_ptr()
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - a file of the kernel's
        for line in maps:
            start, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
            if start <= address < end:
                return "memfd:stagepipe" in line
    return False


def test_batches_come_as_tensors_and_each_iteration_is_an_epoch():
    with Loader(BATCHES) as loader:
        for _ in range(3):
            found = list(loader)
            assert [item["id"].tolist() for item in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11],
                                                                [12, 13, 14, 15], [16, 17]]  # fmt: skip
            assert found[0]["x"].dtype == torch.float32
            assert found[0]["x"].shape == (4, 4, 3)
            assert found[0]["name"] == [f"item {number}" for number in range(4)]


def test_large_arrays_lie_in_shared_memory_and_are_the_callers_to_write():
    with Loader(IMAGES) as loader:
        item = next(iter(loader))
        assert mapped_over_an_arena(item["image"])
        item["image"] += 1
        assert int(item["image"][0]) == 1


def test_workers_live_on_between_epochs_and_are_gone_in_the_end():
    before = set(psutil.Process().children())
    with Loader(BATCHES) as loader:
        list(loader)
        first = set(psutil.Process().children()) - before
        list(loader)
        assert set(psutil.Process().children()) - before == first != set()
    assert set(psutil.Process().children()) <= before
    with pytest.raises(UsageError, match="closed"):
        iter(loader)


def test_a_loader_that_is_collected_ends_its_workers():
    before = set(psutil.Process().children())
    loader = Loader(BATCHES)
    assert len(list(loader)) == 5
    del loader
    gc.collect()
    assert set(psutil.Process().children()) <= before


def test_breaking_off_and_beginning_anew():
    with Loader(IMAGES) as loader:
        for stop in (1, 3, 0, 2):
            found = list(itertools.islice(loader, stop))
            assert sums(found) == [(number, number * 1_200_000) for number in range(stop)]
        assert len(list(loader)) == 24


def test_two_live_iterators_of_one_loader_are_refused_by_name():
    with Loader(BATCHES) as loader:
        first, second = iter(loader), iter(loader)
        with pytest.raises(UsageError, match="a newer iteration of this pipeline has begun"):
            next(first)
        assert next(second)["id"].tolist() == [0, 1, 2, 3]
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(UsageError, match="a state was loaded"):
            next(second)


def test_a_tensor_keeps_its_memory_while_the_loop_goes_on():
    with Loader(IMAGES) as loader:
        views = [item["image"][::7].view(torch.int8) for item in loader]
        assert [int(view.view(torch.uint8)[0]) for view in views] == list(range(24))
    assert [int(view.view(torch.uint8)[-1]) for view in views] == list(range(24)), "also when the loader is closed"


def test_what_exceeds_the_loaders_share_is_copied_out_and_counted():
    with Loader({**IMAGES, "memory": "24MiB"}) as loader:
        kept = list(loader)
        assert sums(kept) == [(number, number * 1_200_000) for number in range(24)]
    copied = loader.report().memory.copied_out_items
    assert 0 < copied < 24
    assert sum(mapped_over_an_arena(item["image"]) for item in kept) == 24 - copied


@pytest.mark.parametrize(
    "config, length",
    [
        (pipeline(stage("same"), source=10), 10),
        (pipeline(stage("to_dict"), batch(4), shuffle(3), source=10), 3),
        (pipeline(stage("to_dict"), batch(4, drop_last=True), stage("same", fuse=True), source=10), 2),
    ],
)
@pytest.mark.parametrize("inline", [False, True])
def test_its_length_where_it_is_known(config, length, inline):
    with Loader(config, inline=inline) as loader:
        assert len(loader) == length == len(list(loader))


@pytest.mark.parametrize(
    "config",
    [
        pipeline(stage("parts"), source=10),
        pipeline(stage("stagepipe.stages.Filter", with_={"where": {"uses": "tests.zoo.stages.is_even"}}), source=10),
        pipeline(stage("same"), source={"uses": "tests.zoo.stages.stream", "with": {"count": 3}}),
    ],
    ids=["a generator", "a filter", "a stream"],
)
def test_nobody_knows_the_length_behind(config):
    with Loader(config) as loader, pytest.raises(TypeError, match="nobody knows how many items"):
        len(loader)


def test_set_epoch_says_which_epoch_comes_next():
    config = pipeline(stage("light_draws"), source=5, seed=1)
    with Loader(config) as loader:
        epochs = [[item["python"] for item in loader] for _ in range(3)]
        assert loader.epoch == 3
        loader.set_epoch(1)
        assert loader.epoch == 1
        assert [item["python"] for item in loader] == epochs[1]
        assert [item["python"] for item in loader] == epochs[2]
        with pytest.raises(UsageError, match="whole numbers from 0 on"):
            loader.set_epoch(-1)


def test_an_iterator_that_was_never_asked_for_an_item_was_no_epoch():
    """Lightning calls `iter` on what it is given to see whether it can, and once more to train."""
    config = pipeline(stage("light_draws"), source=5, seed=1)
    with Loader(config) as loader:
        epochs = [[item["python"] for item in loader] for _ in range(3)]
        loader.set_epoch(0)
        iter(loader)
        found = iter(loader)
        assert [next(found)["python"] for _ in range(2)] == epochs[0][:2]
        loader.load_state_dict(loader.state_dict())
        iter(loader)
        assert [item["python"] for item in loader] == epochs[0][2:], "a place that was loaded is kept"
        iter(loader)
        loader.set_epoch(2)
        assert [item["python"] for item in loader] == epochs[2]


def test_set_epoch_leaves_a_place_loaded_in_that_epoch_alone():
    with Loader(BATCHES) as loader:
        list(loader)
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert len(list(loader)) == 4
        loader.load_state_dict(state)
        loader.set_epoch(0)
        assert len(list(loader)) == 5


def test_a_pipeline_of_ones_own_is_taken_as_it_is():
    with Loader(Pipeline(BATCHES, limit=5)) as loader:
        assert [item["id"].tolist() for item in loader] == [[0, 1, 2, 3], [4]]
    with pytest.raises(UsageError, match="say them there"):
        Loader(Pipeline(BATCHES), limit=5)


def test_pinning_where_there_is_nothing_to_pin_for_warns(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="pin_memory=True does nothing here") as caught:
        Loader(BATCHES, pin_memory=True)
    assert caught[0].filename == __file__


def test_the_device_of_what_is_yielded():
    with warnings.catch_warnings(), Loader(BATCHES, device="cpu") as loader:
        assert next(iter(loader))["x"].device.type == "cpu"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_off_leaves_the_workers_alone():
    with Loader(BATCHES) as loader:
        list(loader)
        pid = os.fork()
        if not pid:
            loader.pipeline._finalizer()
            os._exit(0)
        os.waitpid(pid, 0)
        assert len(list(loader)) == 5


def test_numbers_of_numpy_too():
    config = {"source": {"uses": range(3)}, "stages": [{"name": "number", "uses": lambda n: np.float32(n / 2)}]}
    with Loader(config) as loader:
        assert [(item.dtype, item.item()) for item in loader] == [(torch.float32, n / 2) for n in range(3)]
