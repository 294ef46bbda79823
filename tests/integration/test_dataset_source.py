"""DatasetSource with datasets of torch and Hugging Face: indices from the source, samples from the stage."""

import importlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Subset, TensorDataset, WeightedRandomSampler

from stagepipe import Pipeline, RunError
from stagepipe.core import build_target, share_datasets
from stagepipe.sources import DatasetSource
from tests.support.datasets import Endless, Epochs, Keeper, Lines, Squares
from tests.support.pipelines import batch, plain

ZOO = "tests.support.datasets"
SQUARES = {"dataset": f"{ZOO}.Squares", "with": {"count": 12}}

pytestmark = pytest.mark.timeout(110)  # workers that import torch start slowly on a busy machine


def make_config(*stages: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """`keys`, among the arguments, are those of the source."""
    keys = arguments.pop("keys", {})
    source = {"uses": "stagepipe.sources.dataset", "with": arguments, **keys}
    return {"name": "test", "seed": 3, "source": source, "stages": list(stages)}


def epochs(config: dict[str, Any], count: int = 2, *, inline: bool = True) -> list[list[Any]]:
    with Pipeline(config, inline=inline) as pipeline:
        return [[plain(item) for item in pipeline] for _ in range(count)]


def indices(config: dict[str, Any], count: int = 2, **keys: Any) -> list[list[Any]]:
    return [[item["index"] for item in epoch] for epoch in epochs(config, count, **keys)]


def test_any_number_of_workers_gives_the_same_bits():
    shuffled = {**SQUARES, "shuffle": True}
    expected = epochs(make_config(batch(5), **shuffled))
    assert sorted(index for one in expected[0] for index in one["index"][2]) == list(range(12))
    assert expected[0] != expected[1]
    for keys in ({"workers": 2}, {"fuse": True}):
        assert epochs(make_config(batch(5), keys=keys, **shuffled), inline=False) == expected


def test_a_batch_sampler_gives_batches_whose_tensors_stay_tensors():
    sampler = {
        "uses": "torch.utils.data.BatchSampler",
        "with": {"sampler": {"uses": "torch.utils.data.RandomSampler"}, "batch_size": 5, "drop_last": False},
    }
    config = make_config(keys={"workers": 2}, batch_sampler=sampler, **SQUARES)
    expected = epochs(config)
    assert epochs(config, inline=False) == expected
    first, second, third = expected[0]
    assert [len(one["index"][2]) for one in (first, second, third)] == [5, 5, 2]
    assert first["image"][:2] == ("tensor", "torch.float32")
    assert sorted(first["index"][2] + second["index"][2] + third["index"][2]) == list(range(12))
    assert expected[1] != expected[0]


def test_collate_fn_is_called_with_the_samples():
    collate = {"uses": f"{ZOO}.collate", "with": {"key": "index"}}
    config = make_config(batch_sampler=f"{ZOO}.pairs", collate_fn=collate, **SQUARES)
    assert epochs(config, 1) == [[{"indices": [index, index + 1], "count": 2} for index in range(0, 12, 2)]]


def test_torch_collate_gives_the_batches_of_a_data_loader():
    data = TensorDataset(torch.arange(6), torch.eye(6))
    config = make_config(dataset=data, batch_sampler=f"{ZOO}.pairs", collate_fn="torch.utils.data.default_collate")
    expected = list(torch.utils.data.DataLoader(data, batch_size=2))
    found = list(Pipeline(config, inline=True))
    assert [type(one) for one in found] == [list] * 3
    assert all(
        torch.equal(a, b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_lists_of_indices_are_fetched_at_once_if_the_dataset_can():
    together = {"dataset": f"{ZOO}.Together", "with": {"count": 4}}
    assert epochs(make_config(batch_sampler=f"{ZOO}.pairs", **together), 1)[0][0]["alone"] == (
        "array",
        "bool",
        [False] * 2,
    )
    assert epochs(make_config(**together), 1)[0][0] == {"index": 0, "alone": True}
    listed = epochs(make_config(keys={"batch": {"size": 4}}, **together), 1)
    assert listed == [[{"index": index, "alone": False} for index in range(4)]]


@pytest.mark.parametrize("name", ["squares", "Squares"])
def test_a_class_or_a_function_gives_the_dataset(name):
    assert indices(make_config(dataset=f"{ZOO}.{name}", **{"with": {"count": 3}}), 1) == [[0, 1, 2]]


def test_a_class_an_object_or_nested_uses_gives_the_dataset():
    nested = {"uses": "torch.utils.data.Subset", "with": {"dataset": {"uses": Squares, "with": {"count": 9}}}}
    nested["with"]["indices"] = [8, 3]
    assert indices(make_config(dataset=Squares, **{"with": {"count": 2}}), 1) == [[0, 1]]
    assert indices(make_config(dataset=Subset(Squares(9), [5, 2])), 1) == [[5, 2]]
    assert indices(make_config(dataset=nested), 1) == [[8, 3]]


def test_a_local_object_is_sent_to_the_workers():
    class Local:
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return index * 10

    assert epochs(make_config(keys={"workers": 2}, dataset=Local()), 1, inline=False) == [[0, 10, 20, 30, 40]]


def test_a_list_is_a_dataset_too():
    assert epochs(make_config(dataset=["a", "b"], shuffle=True), 1, inline=True)[0] in (["a", "b"], ["b", "a"])


def test_one_process_of_a_run_holds_one_copy():
    one, other = ({"dataset": {"uses": f"{ZOO}.Squares", "with": {"count": count}}} for count in (12, 13))
    with share_datasets():
        source, stage = build_target("stagepipe.sources.dataset", one), build_target("stagepipe.stages.Fetch", one)
        assert source.dataset is stage._dataset
        assert build_target("stagepipe.stages.Fetch", other)._dataset is not stage._dataset


def test_each_run_builds_its_dataset():
    """Its files may have changed since an earlier run that is still open, and it may keep state."""
    config = make_config(dataset=f"{ZOO}.TellsItsId")
    with Pipeline(config, inline=True) as first, Pipeline(config, inline=True) as second:
        assert list(first) == list(first) != list(second)


def test_an_error_in_a_sample_names_stage_and_item():
    config = make_config(dataset=f"{ZOO}.Broken", **{"with": {"count": 9}})
    with pytest.raises(RunError, match="stage source, worker 0, item 5: OSError: sample 5 is broken") as caught:
        list(Pipeline(config, inline=True))
    assert "tests/support/datasets.py" in caught.value.trace


@pytest.mark.parametrize("name", ["Lines", "lines"])
def test_an_iterable_dataset_is_a_stream_and_its_epoch_is_set(name):
    config = make_config(batch(4), dataset=f"{ZOO}.{name}", **{"with": {"count": 6}})
    found = epochs(config, inline=name == "Lines")  # the stage of the other is a process, which passes samples on
    assert [one["line"][2] for one in found[0]] == [[0, 1, 2, 3], [4, 5]]
    assert [one["epoch"][2] for one in found[1]] == [[1, 1, 1, 1], [1, 1]]


@pytest.mark.parametrize("order", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_an_iterable_dataset_has_nothing_to_order(order):
    with pytest.raises(ValueError, match=r"Lines is iterable.*stagepipe\.stages\.Shuffle"):
        DatasetSource(Lines(3), **order)


def test_an_iterator_is_refused():
    with pytest.raises(TypeError, match=r"the dataset is an iterator .* can be read only once"):
        DatasetSource(iter([1, 2]))
    with pytest.raises(TypeError, match=r"`sampler` is an iterator .* can be read only once"):
        DatasetSource([1, 2], sampler=iter([1, 0]))


def test_an_invalid_dataset_is_refused():
    with pytest.raises(TypeError, match="found int, which has neither `__getitem__` nor `__iter__`"):
        DatasetSource(3)
    with pytest.raises(TypeError, match="`sampler` is int, which has no `__iter__`"):
        DatasetSource([1], sampler=3)


def test_orders_exclude_each_other():
    with pytest.raises(ValueError, match="`shuffle` and `sampler` exclude each other"):
        DatasetSource([1, 2], shuffle=True, sampler=[0])


def test_without_a_length_it_needs_a_sampler():
    with pytest.raises(TypeError, match="Endless has `__getitem__` but no `__len__`"):
        DatasetSource(Endless())
    assert epochs(make_config(dataset=Endless(), sampler=[7, 2]), 1) == [[-7, -2]]


def test_an_order_can_be_read_from_any_position_repeatedly():
    source = DatasetSource(Squares(50), shuffle=True)
    source.begin(2, 17)
    order = [source[index] for index in range(50)]
    source.begin(3, 17)
    assert order != [source[index] for index in range(50)]
    source.begin(2, 17)
    assert [source[index] for index in range(30, 50)] == order[30:]
    assert len(source) == 50


@pytest.mark.parametrize("kind", ["torch", "numpy", "legacy", "python"])
def test_a_samplers_own_generator_follows_seed_and_epoch(kind):
    def order(epoch: int, seed: int) -> list[int]:
        source = DatasetSource(Squares(8), sampler=Keeper(kind))
        source.begin(epoch, seed)
        return [source[index] for index in range(len(source))]

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(epoch, seed)) for epoch in range(3) for seed in range(3)}) == 9


def test_reading_the_length_before_the_first_epoch_changes_nothing():
    config = {**make_config(sampler="torch.utils.data.RandomSampler", **SQUARES), "seed": 0}
    source = DatasetSource(Squares(12), sampler={1: None, 5: None})
    assert (len(source), list(source)) == (2, [1, 5])
    pipeline = Pipeline(config, inline=True)
    pipeline.start()
    assert len(pipeline) == 12
    assert [item["index"] for item in pipeline] == indices(config)[0]


def test_every_rank_sees_one_order():
    config = make_config(sampler="torch.utils.data.RandomSampler", **SQUARES)
    [whole] = indices(config, 1)
    ranks = [list(Pipeline(config, inline=True, rank=rank, world_size=2)) for rank in range(2)]
    assert [item["index"] for pair in zip(*ranks, strict=True) for item in pair] == whole


def test_a_batch_counts_as_its_samples():
    with Pipeline(make_config(batch_sampler=f"{ZOO}.pairs", **SQUARES), inline=True) as pipeline:
        assert len(list(pipeline)) == 6
        assert (pipeline.progress().items_out, pipeline.progress().samples_out) == (6, 12)


def test_the_sampler_inside_a_batch_sampler_is_seeded_and_its_epoch_is_set():
    own_generator = BatchSampler(RandomSampler(range(9), generator=torch.Generator()), 4, drop_last=False)
    source = DatasetSource(Squares(9), batch_sampler=own_generator)
    source.begin(1, 2)
    first = list(source)
    source.begin(0, 2)
    source.begin(1, 2)
    assert list(source) == first
    source = DatasetSource(Squares(4), batch_sampler=BatchSampler(Epochs(Squares(4)), 4, drop_last=False))
    source.begin(3, 0)
    assert list(source) == [[3, 0, 1, 2]]


@pytest.mark.parametrize(
    "sampler",
    [
        "torch.utils.data.RandomSampler",
        {"uses": "torch.utils.data.RandomSampler", "with": {"replacement": True, "num_samples": 7}},
        {"uses": "torch.utils.data.WeightedRandomSampler", "with": {"weights": [1.0] * 12, "num_samples": 5}},
        {"uses": "torch.utils.data.DistributedSampler", "with": {"num_replicas": 2, "rank": 1}},
        pytest.param(WeightedRandomSampler([1.0] * 12, 6, generator=torch.Generator()), id="a sampler object"),
        f"{ZOO}.Epochs",
    ],
    ids=str,
)
def test_the_order_of_torchs_samplers_depends_on_the_seed(sampler):
    config = make_config(sampler=sampler, **SQUARES)
    first = indices(config, 3)
    assert first == indices(config, 3)
    assert len({tuple(one) for one in first}) == 3


def test_a_sampler_may_be_a_generator_function():
    config = make_config(sampler={"uses": f"{ZOO}.every", "with": {"step": 5}}, **SQUARES)
    assert indices(config) == [[0, 5, 10], [0, 5, 10]]


def test_an_interrupted_epoch_is_followed_by_a_whole_one():
    config = make_config(keys={"workers": 2}, dataset=list("abcdefghijkl"), shuffle=True)
    expected = epochs(config, 3)
    with Pipeline(config) as pipeline:
        next(iter(pipeline))
        assert list(pipeline) == expected[1]
        assert list(pipeline) == expected[2]
        assert pipeline.progress().items_total == 12


def test_another_run_resumes_in_the_middle_of_an_epoch():
    class Shuffled:  # without torch, which a worker needs seconds to import
        def __iter__(self):
            return iter(random.sample(range(12), 12))

    config = make_config(keys={"workers": 2}, dataset=list("abcdefghijkl"), sampler=Shuffled())
    expected = epochs(config, 2)
    with Pipeline(config) as pipeline:
        items = iter(pipeline)
        assert [next(items) for _ in range(5)] == expected[0][:5]
        state = pipeline.state_dict()
    with Pipeline(config) as pipeline:
        pipeline.load_state_dict(state)
        assert list(pipeline) == expected[0][5:]
        assert list(pipeline) == expected[1]


def test_a_report_shows_the_source_with_its_workers():
    with Pipeline(make_config(keys={"workers": 2}, dataset=list(range(12)))) as pipeline:
        assert len(list(pipeline)) == 12
    stages = {stage.name: (stage.workers, stage.items) for stage in pipeline.report().stages}
    assert stages["source"] == (2, 12)


@pytest.fixture
def datasets() -> Any:
    """Hugging Face's package; imported only here, as every process that runs tests imports this module."""
    return importlib.import_module("datasets")


@pytest.fixture
def saved(datasets: Any, tmp_path: Path) -> Path:
    rows = {"text": [f"line {index}" for index in range(10)], "label": list(range(10)), "vector": np.eye(10).tolist()}
    datasets.Dataset.from_dict(rows).with_format("numpy").save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_hugging_face_from_disk_with_workers(saved: Path):
    arguments = {"dataset": "datasets.load_from_disk", "with": {"dataset_path": str(saved)}}
    config = make_config(batch(5), keys={"workers": 2}, shuffle=True, **arguments)
    expected = epochs(config, 1)
    assert sorted(expected[0][0]["label"][2] + expected[0][1]["label"][2]) == list(range(10))
    assert expected[0][0]["text"][0] == f"line {expected[0][0]['label'][2][0]}"
    assert epochs(config, 1, inline=False) == expected


def test_hugging_face_as_an_object_in_batches(datasets: Any):
    data = datasets.Dataset.from_dict({"n": list(range(6))}).with_format("torch")
    found = epochs(make_config(dataset=data, batch_sampler=f"{ZOO}.pairs"), 1)
    assert found == [[{"n": ("tensor", "torch.int64", [index, index + 1])} for index in (0, 2, 4)]]


def test_hugging_face_iterable_is_a_stream(datasets: Any):
    data = datasets.Dataset.from_dict({"n": list(range(6))}).to_iterable_dataset(num_shards=2)
    assert epochs(make_config(dataset=data), 1) == [[{"n": index} for index in range(6)]]
    shuffled = epochs(make_config(dataset=data.shuffle(seed=1, buffer_size=4)))
    assert shuffled[0] != shuffled[1]  # its epoch was set


@pytest.mark.slow
def test_torchvisions_fake_data_with_its_transform():
    fake = {"size": 6, "image_size": [3, 8, 8], "transform": {"uses": "torchvision.transforms.v2.PILToTensor"}}
    config = make_config(batch(6), keys={"workers": 2}, dataset="torchvision.datasets.FakeData", **{"with": fake})
    with Pipeline(config) as pipeline:
        [(images, labels)] = pipeline
    assert (tuple(images.shape), images.dtype, labels.shape) == ((6, 3, 8, 8), torch.uint8, (6,))


def test_torchvisions_image_folder(tmp_path: Path):
    from PIL import Image

    for index, name in enumerate(["ant", "bee"]):
        (tmp_path / name).mkdir()
        Image.new("RGB", (6, 4), (index * 200, 0, 0)).save(tmp_path / name / "one.png")
    arguments = {"root": str(tmp_path), "transform": {"uses": "torchvision.transforms.v2.PILToTensor"}}
    config = make_config(batch(2), dataset="torchvision.datasets.ImageFolder", **{"with": arguments})
    [(images, labels)] = Pipeline(config, inline=True)
    assert images[:, 0, 0, 0].tolist() == [0, 200]
    assert labels.tolist() == [0, 1]
