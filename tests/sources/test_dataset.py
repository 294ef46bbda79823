"""dataset: torch's and Hugging Face's datasets as they stand; indices from the source, samples from the stage."""

import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Subset, TensorDataset, WeightedRandomSampler

from stagepipe import Pipeline, RunError
from stagepipe.core.targets import build
from stagepipe.sources import dataset
from tests.zoo.datasets import Endless, Epochs, Keeper, Lines, Squares
from tests.zoo.pipelines import batch, plain

ZOO = "tests.zoo.datasets"
SQUARES = {"dataset": f"{ZOO}.Squares", "with": {"count": 12}}

pytestmark = pytest.mark.timeout(110)  # workers that import torch start slowly on a busy machine


def config(*stages: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    source = {"uses": "stagepipe.sources.dataset", "with": arguments}
    return {"name": "test", "seed": 3, "source": source, "stages": list(stages)}


def own(**keys: Any) -> dict[str, Any]:
    return {"name": "dataset", **keys}


def epochs(made: dict[str, Any], count: int = 2, *, inline: bool = True) -> list[list[Any]]:
    with Pipeline(made, inline=inline) as pipeline:
        return [[plain(item) for item in pipeline] for _ in range(count)]


def indices(made: dict[str, Any], count: int = 2, **keys: Any) -> list[list[Any]]:
    return [[item["index"] for item in epoch] for epoch in epochs(made, count, **keys)]


def test_any_number_of_workers_and_none_give_the_same_bits():
    shuffled = {**SQUARES, "shuffle": True}
    want = epochs(config(batch(5), **shuffled))
    assert sorted(index for one in want[0] for index in one["index"][2]) == list(range(12))
    assert want[0] != want[1]
    for stage in (own(workers=2), own(fuse=True)):
        assert epochs(config(stage, batch(5), **shuffled), inline=False) == want


def test_a_batch_sampler_gives_batches_whose_tensors_stay_tensors():
    sampler = {
        "uses": "torch.utils.data.BatchSampler",
        "with": {"sampler": {"uses": "torch.utils.data.RandomSampler"}, "batch_size": 5, "drop_last": False},
    }
    made = config(own(workers=2), batch_sampler=sampler, **SQUARES)
    want = epochs(made)
    assert epochs(made, inline=False) == want
    first, second, third = want[0]
    assert [len(one["index"][2]) for one in (first, second, third)] == [5, 5, 2]
    assert first["image"][:2] == ("tensor", "torch.float32")
    assert sorted(first["index"][2] + second["index"][2] + third["index"][2]) == list(range(12))
    assert want[1] != want[0]


def test_collate_fn_is_called_with_the_samples():
    collate = {"uses": f"{ZOO}.collate", "with": {"key": "index"}}
    made = config(batch_sampler=f"{ZOO}.pairs", collate_fn=collate, **SQUARES)
    assert epochs(made, 1) == [[{"indices": [at, at + 1], "count": 2} for at in range(0, 12, 2)]]


def test_torchs_own_collate_gives_what_a_data_loader_gives():
    data = TensorDataset(torch.arange(6), torch.eye(6))
    made = config(dataset=data, batch_sampler=f"{ZOO}.pairs", collate_fn="torch.utils.data.default_collate")
    want = list(torch.utils.data.DataLoader(data, batch_size=2))
    found = list(Pipeline(made, inline=True))
    assert [type(one) for one in found] == [list] * 3
    assert all(
        torch.equal(a, b) for one, other in zip(found, want, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_lists_of_indices_are_fetched_at_once_where_the_dataset_can():
    together = {"dataset": f"{ZOO}.Together", "with": {"count": 4}}
    assert epochs(config(batch_sampler=f"{ZOO}.pairs", **together), 1)[0][0]["alone"] == ("array", "bool", [False] * 2)
    assert epochs(config(**together), 1)[0][0] == {"index": 0, "alone": True}
    listed = epochs(config(own(batch={"size": 4}), **together), 1)
    assert listed == [[{"index": at, "alone": False} for at in range(4)]]


@pytest.mark.parametrize("name", ["squares", "Squares"])
def test_a_class_or_a_function_that_returns_one(name):
    assert indices(config(dataset=f"{ZOO}.{name}", **{"with": {"count": 3}}), 1) == [[0, 1, 2]]


def test_a_class_an_object_and_nested_uses():
    nested = {"uses": "torch.utils.data.Subset", "with": {"dataset": {"uses": Squares, "with": {"count": 9}}}}
    nested["with"]["indices"] = [8, 3]
    assert indices(config(dataset=Squares, **{"with": {"count": 2}}), 1) == [[0, 1]]
    assert indices(config(dataset=Subset(Squares(9), [5, 2])), 1) == [[5, 2]]
    assert indices(config(dataset=nested), 1) == [[8, 3]]


def test_an_object_of_a_script_travels_to_the_workers():
    class Local:
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return index * 10

    assert epochs(config(own(workers=2), dataset=Local()), 1, inline=False) == [[0, 10, 20, 30, 40]]


def test_a_list_is_a_dataset_too():
    assert epochs(config(dataset=["a", "b"], shuffle=True), 1, inline=True)[0] in (["a", "b"], ["b", "a"])


def test_one_process_holds_one_copy():
    one, other = ({"dataset": {"uses": f"{ZOO}.Squares", "with": {"count": count}}} for count in (12, 13))
    source, stage = build("stagepipe.sources.dataset", one), build("stagepipe.stages.Fetch", one)
    assert source._dataset is stage._dataset
    assert build("stagepipe.stages.Fetch", other)._dataset is not stage._dataset


def test_what_a_sample_raises_names_stage_and_item():
    made = config(dataset=f"{ZOO}.Broken", **{"with": {"count": 9}})
    with pytest.raises(RunError, match="stage dataset, worker 0, item 5: OSError: sample 5 is broken") as caught:
        list(Pipeline(made, inline=True))
    assert "tests/zoo/datasets.py" in caught.value.trace


@pytest.mark.parametrize("name", ["Lines", "lines"])
def test_an_iterable_dataset_is_a_stream_that_is_told_its_epoch(name):
    made = config(batch(4), dataset=f"{ZOO}.{name}", **{"with": {"count": 6}})
    found = epochs(made, inline=name == "Lines")  # the other's stage is a process, which passes samples on
    assert [one["line"][2] for one in found[0]] == [[0, 1, 2, 3], [4, 5]]
    assert [one["epoch"][2] for one in found[1]] == [[1, 1, 1, 1], [1, 1]]


@pytest.mark.parametrize("order", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_an_iterable_dataset_has_nothing_to_order(order):
    with pytest.raises(ValueError, match=r"Lines is iterable.*stagepipe\.stages\.Shuffle"):
        dataset(Lines(3), **order)


def test_an_iterator_is_refused():
    with pytest.raises(TypeError, match=r"the dataset is an iterator .* can be read only once"):
        dataset(iter([1, 2]))
    with pytest.raises(TypeError, match=r"`sampler` is an iterator .* can be read only once"):
        dataset([1, 2], sampler=iter([1, 0]))


def test_what_is_no_dataset_is_refused():
    with pytest.raises(TypeError, match="found int, which has neither `__getitem__` nor `__iter__`"):
        dataset(3)
    with pytest.raises(TypeError, match="`sampler` is int, which has no `__iter__`"):
        dataset([1], sampler=3)


def test_orders_exclude_each_other():
    with pytest.raises(ValueError, match="`shuffle` and `sampler` exclude each other"):
        dataset([1, 2], shuffle=True, sampler=[0])


def test_without_a_length_it_needs_a_sampler():
    with pytest.raises(TypeError, match="Endless has `__getitem__` but no `__len__`"):
        dataset(Endless())
    assert epochs(config(dataset=Endless(), sampler=[7, 2]), 1) == [[-7, -2]]


def test_an_order_can_be_asked_from_anywhere_again_and_again():
    source = dataset(Squares(50), shuffle=True)
    source.begin(2, 17)
    order = [source[at] for at in range(50)]
    source.begin(3, 17)
    assert order != [source[at] for at in range(50)]
    source.begin(2, 17)
    assert [source[at] for at in range(30, 50)] == order[30:]
    assert len(source) == 50


@pytest.mark.parametrize("kind", ["torch", "numpy", "legacy", "python"])
def test_a_samplers_own_generator_follows_seed_and_epoch(kind):
    def order(epoch: int, seed: int) -> list[int]:
        source = dataset(Squares(8), sampler=Keeper(kind))
        source.begin(epoch, seed)
        return [source[at] for at in range(len(source))]

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(epoch, seed)) for epoch in range(3) for seed in range(3)}) == 9


def test_a_look_at_the_length_before_the_first_epoch_changes_nothing():
    made = {**config(sampler="torch.utils.data.RandomSampler", **SQUARES), "seed": 0}
    source = dataset(Squares(12), sampler={1: None, 5: None})
    assert (len(source), list(source)) == (2, [1, 5])
    pipeline = Pipeline(made, inline=True)
    pipeline.start()
    assert len(pipeline) == 12
    assert [item["index"] for item in pipeline] == indices(made)[0]


def test_every_rank_sees_one_order():
    made = config(sampler="torch.utils.data.RandomSampler", **SQUARES)
    [whole] = indices(made, 1)
    ranks = [list(Pipeline(made, inline=True, rank=rank, world_size=2)) for rank in range(2)]
    assert [item["index"] for pair in zip(*ranks, strict=True) for item in pair] == whole


def test_a_batch_counts_as_its_samples():
    with Pipeline(config(batch_sampler=f"{ZOO}.pairs", **SQUARES), inline=True) as pipeline:
        assert len(list(pipeline)) == 6
        assert (pipeline.progress().items_out, pipeline.progress().samples_out) == (6, 12)


def test_the_sampler_inside_a_batch_sampler_is_seeded_and_told_too():
    own_generator = BatchSampler(RandomSampler(range(9), generator=torch.Generator()), 4, drop_last=False)
    source = dataset(Squares(9), batch_sampler=own_generator)
    source.begin(1, 2)
    first = list(source)
    source.begin(0, 2)
    source.begin(1, 2)
    assert list(source) == first
    told = dataset(Squares(4), batch_sampler=BatchSampler(Epochs(Squares(4)), 4, drop_last=False))
    told.begin(3, 0)
    assert list(told) == [[3, 0, 1, 2]]


@pytest.mark.parametrize(
    "sampler",
    [
        "torch.utils.data.RandomSampler",
        {"uses": "torch.utils.data.RandomSampler", "with": {"replacement": True, "num_samples": 7}},
        {"uses": "torch.utils.data.WeightedRandomSampler", "with": {"weights": [1.0] * 12, "num_samples": 5}},
        {"uses": "torch.utils.data.DistributedSampler", "with": {"num_replicas": 2, "rank": 1}},
        WeightedRandomSampler([1.0] * 12, 6, generator=torch.Generator()),
        f"{ZOO}.Epochs",
    ],
    ids=str,
)
def test_torchs_samplers_give_an_order_of_the_seed(sampler):
    made = config(sampler=sampler, **SQUARES)
    first = indices(made, 3)
    assert first == indices(made, 3)
    assert len({tuple(one) for one in first}) == 3


def test_a_sampler_may_be_a_generator_function():
    made = config(sampler={"uses": f"{ZOO}.every", "with": {"step": 5}}, **SQUARES)
    assert indices(made) == [[0, 5, 10], [0, 5, 10]]


def test_an_epoch_broken_off_is_followed_by_a_whole_one():
    made = config(own(workers=2), dataset=list("abcdefghijkl"), shuffle=True)
    want = epochs(made, 3)
    with Pipeline(made) as pipeline:
        next(iter(pipeline))
        assert list(pipeline) == want[1]
        assert list(pipeline) == want[2]
        assert pipeline.progress().items_total == 12


def test_another_run_goes_on_in_the_middle_of_an_epoch():
    class Shuffled:  # without torch, which takes a worker seconds to import
        def __iter__(self):
            return iter(random.sample(range(12), 12))

    made = config(own(workers=2), dataset=list("abcdefghijkl"), sampler=Shuffled())
    want = epochs(made, 2)
    with Pipeline(made) as pipeline:
        items = iter(pipeline)
        assert [next(items) for _ in range(5)] == want[0][:5]
        state = pipeline.state_dict()
    with Pipeline(made) as pipeline:
        pipeline.load_state_dict(state)
        assert list(pipeline) == want[0][5:]
        assert list(pipeline) == want[1]


def test_a_report_shows_the_stage_with_its_workers():
    with Pipeline(config(own(workers=2), dataset=list(range(12)))) as pipeline:
        assert len(list(pipeline)) == 12
    stages = {stage.name: (stage.workers, stage.items) for stage in pipeline.report().stages}
    assert stages == {"source": (1, 12), "dataset": (2, 12)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    rows = {"text": [f"line {at}" for at in range(10)], "label": list(range(10)), "vector": np.eye(10).tolist()}
    datasets.Dataset.from_dict(rows).with_format("numpy").save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def test_hugging_face_from_disk_with_workers(saved: Path):
    arguments = {"dataset": "datasets.load_from_disk", "with": {"dataset_path": str(saved)}}
    made = config(own(workers=2), batch(5), shuffle=True, **arguments)
    want = epochs(made, 1)
    assert sorted(want[0][0]["label"][2] + want[0][1]["label"][2]) == list(range(10))
    assert want[0][0]["text"][0] == f"line {want[0][0]['label'][2][0]}"
    assert epochs(made, 1, inline=False) == want


def test_hugging_face_as_an_object_in_batches():
    data = datasets.Dataset.from_dict({"n": list(range(6))}).with_format("torch")
    found = epochs(config(dataset=data, batch_sampler=f"{ZOO}.pairs"), 1)
    assert found == [[{"n": ("tensor", "torch.int64", [at, at + 1])} for at in (0, 2, 4)]]


def test_hugging_face_iterable_is_a_stream():
    data = datasets.Dataset.from_dict({"n": list(range(6))}).to_iterable_dataset(num_shards=2)
    assert epochs(config(dataset=data), 1) == [[{"n": at} for at in range(6)]]
    shuffled = epochs(config(dataset=data.shuffle(seed=1, buffer_size=4)))
    assert shuffled[0] != shuffled[1]  # it was told its epoch


@pytest.mark.slow
def test_torchvisions_fake_data_with_its_transform():
    fake = {"size": 6, "image_size": [3, 8, 8], "transform": {"uses": "torchvision.transforms.v2.PILToTensor"}}
    made = config(own(workers=2), batch(6), dataset="torchvision.datasets.FakeData", **{"with": fake})
    with Pipeline(made) as pipeline:
        [(images, labels)] = pipeline
    assert (tuple(images.shape), images.dtype, labels.shape) == ((6, 3, 8, 8), torch.uint8, (6,))


def test_torchvisions_image_folder(tmp_path: Path):
    from PIL import Image

    for at, name in enumerate(["ant", "bee"]):
        (tmp_path / name).mkdir()
        Image.new("RGB", (6, 4), (at * 200, 0, 0)).save(tmp_path / name / "one.png")
    arguments = {"root": str(tmp_path), "transform": {"uses": "torchvision.transforms.v2.PILToTensor"}}
    made = config(batch(2), dataset="torchvision.datasets.ImageFolder", **{"with": arguments})
    [(images, labels)] = Pipeline(made, inline=True)
    assert images[:, 0, 0, 0].tolist() == [0, 200]
    assert labels.tolist() == [0, 1]
