"""A loader yields one epoch per iteration, as tensors over shared memory that live as long as they are referenced."""

import gc
import itertools
import os
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from stagepipe import Pipeline, UsageError
from stagepipe.torch import Loader
from tests.support.pipelines import batch, pipeline, shuffle, stage
from tests.support.processes import list_run_processes

pytestmark = pytest.mark.timeout(60)

IMAGES = pipeline(stage("megabyte"), source=24)
BATCHES = pipeline(stage("to_dict"), batch(4), source=18)


def sums(items: Any) -> list[tuple[int, int]]:
    return [(item["id"], int(item["image"].sum())) for item in items]


def mapped_over_an_arena(tensor: torch.Tensor) -> bool:
    address = tensor.data_ptr()
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - a file of the kernel
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


def test_large_arrays_lie_in_shared_memory_and_may_be_written():
    with Loader(IMAGES) as loader:
        item = next(iter(loader))
        assert mapped_over_an_arena(item["image"])
        item["image"] += 1
        assert int(item["image"][0]) == 1


def test_workers_stay_between_epochs_and_are_gone_at_the_end():
    before = list_run_processes()
    with Loader(BATCHES) as loader:
        list(loader)
        first = list_run_processes() - before
        list(loader)
        assert list_run_processes() - before == first != set()
    assert list_run_processes() <= before
    with pytest.raises(UsageError, match="closed"):
        iter(loader)


def test_a_garbage_collected_loader_stops_its_workers():
    before = list_run_processes()
    loader = Loader(BATCHES)
    assert len(list(loader)) == 5
    del loader
    gc.collect()
    assert list_run_processes() <= before


def test_an_iteration_may_stop_early_and_the_next_starts_from_the_beginning():
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


def test_a_tensor_keeps_its_memory_while_the_loop_continues():
    with Loader(IMAGES) as loader:
        views = [item["image"][::7].view(torch.int8) for item in loader]
        assert [int(view.view(torch.uint8)[0]) for view in views] == list(range(24))
    assert [int(view.view(torch.uint8)[-1]) for view in views] == list(range(24)), "also after the loader is closed"


def test_items_beyond_the_loaders_share_of_memory_are_copied_and_counted():
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
def test_the_length_if_it_is_known(config, length, inline):
    with Loader(config, inline=inline) as loader:
        assert len(loader) == length == len(list(loader))


@pytest.mark.parametrize(
    "config",
    [
        pipeline(stage("parts"), source=10),
        pipeline(
            stage("stagepipe.stages.Filter", with_={"where": {"uses": "tests.support.stages.is_even"}}), source=10
        ),
        pipeline(stage("same"), source={"uses": "tests.support.stages.stream", "with": {"count": 3}}),
    ],
    ids=["a generator", "a filter", "a stream"],
)
def test_the_length_is_unknown_after(config):
    with Loader(config) as loader, pytest.raises(TypeError, match="length unknown: the pipeline contains"):
        len(loader)


def test_set_epoch_sets_the_next_epoch():
    config = pipeline(stage("light_draws"), source=5, seed=1)
    with Loader(config) as loader:
        epochs = [[item["python"] for item in loader] for _ in range(3)]
        assert loader.epoch == 3
        loader.set_epoch(1)
        assert loader.epoch == 1
        assert [item["python"] for item in loader] == epochs[1]
        assert [item["python"] for item in loader] == epochs[2]
        with pytest.raises(UsageError, match="an epoch is an integer of at least 0"):
            loader.set_epoch(-1)


def test_an_iterator_that_was_never_read_is_not_an_epoch():
    """Lightning calls `iter` once to check that it works, and once more to train."""
    config = pipeline(stage("light_draws"), source=5, seed=1)
    with Loader(config) as loader:
        epochs = [[item["python"] for item in loader] for _ in range(3)]
        loader.set_epoch(0)
        iter(loader)
        found = iter(loader)
        assert [next(found)["python"] for _ in range(2)] == epochs[0][:2]
        loader.load_state_dict(loader.state_dict())
        iter(loader)
        assert [item["python"] for item in loader] == epochs[0][2:], "a loaded position is kept"
        iter(loader)
        loader.set_epoch(2)
        assert [item["python"] for item in loader] == epochs[2]


def test_set_epoch_keeps_a_position_loaded_in_that_epoch():
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


def test_a_given_pipeline_is_used_unchanged():
    with Loader(Pipeline(BATCHES, limit=5)) as loader:
        assert [item["id"].tolist() for item in loader] == [[0, 1, 2, 3], [4]]
    with pytest.raises(UsageError, match="pass them to the Pipeline"):
        Loader(Pipeline(BATCHES), limit=5)


def test_pinning_without_a_gpu_warns(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="pin_memory=True has no effect: no CUDA device was found") as caught:
        Loader(BATCHES, pin_memory=True)
    assert caught[0].filename == __file__


def test_items_are_yielded_on_the_device():
    with warnings.catch_warnings(), Loader(BATCHES, device="cpu") as loader:
        assert next(iter(loader))["x"].device.type == "cpu"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_stop_the_workers():
    with Loader(BATCHES) as loader:
        list(loader)
        pid = os.fork()
        if not pid:
            loader.pipeline._finalizer()
            os._exit(0)
        os.waitpid(pid, 0)
        assert len(list(loader)) == 5


def test_numpy_numbers_become_tensors():
    config = {"source": {"uses": range(3)}, "stages": [{"name": "number", "uses": lambda n: np.float32(n / 2)}]}
    with Loader(config) as loader:
        assert [(item.dtype, item.item()) for item in loader] == [(torch.float32, n / 2) for n in range(3)]


def test_a_loader_in_a_data_loader_is_refused_with_the_class_to_use():
    with Loader(BATCHES) as loader:
        data_loader = torch.utils.data.DataLoader(loader, batch_size=None)
        with pytest.raises(TypeError, match=r"or give the DataLoader a `stagepipe\.torch\.StageDataset`"):
            next(iter(data_loader))
