"""The arguments of a DataLoader mean in `stagepipe.sources.dataset` what they mean in the DataLoader."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from stagepipe import ConfigError, Pipeline, context, from_dataset, from_source
from stagepipe.core import build_target
from stagepipe.sources import DatasetSource
from stagepipe.torch import Loader
from tests.support.datasets import Together

pytestmark = pytest.mark.timeout(110)  # workers that import torch start slowly on a busy machine


class Counting(IterableDataset[int]):
    """A stream with a length. Its workers split it as torch's documentation shows."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if info is None:
            yield from range(self.count)
        else:
            yield from range(info.id, self.count, info.num_workers)


class Recorder(Dataset[Any]):
    """Each sample says what its worker was told."""

    def __init__(self) -> None:
        self.initialized_as: list[int] = []

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        return {"id": info.id, "count": info.num_workers, "seed": info.seed, "init": list(self.initialized_as)}


def record_worker(worker: int) -> None:
    get_worker_info().dataset.initialized_as.append(worker)  # type: ignore[union-attr]


def make_config(**arguments: Any) -> dict[str, Any]:
    return {"name": "test", "seed": 3, "source": {"uses": "stagepipe.sources.dataset", "with": arguments}}


def as_tuple(samples: list[Any]) -> tuple[Any, ...]:
    return tuple(samples)


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches]


# ------------------------------------------------------------------ batch_size, drop_last, collate_fn


@pytest.mark.parametrize("dataset", [list(range(7)), Counting(7)], ids=["map", "iterable"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("collate_fn", [None, as_tuple])
def test_batches_and_their_number_equal_a_data_loaders(dataset, drop_last, collate_fn):
    arguments = {"batch_size": 3, "drop_last": drop_last, "collate_fn": collate_fn}
    theirs = DataLoader(dataset, **arguments)
    with Loader(make_config(dataset=dataset, **arguments), inline=True) as ours:
        assert len(ours) == len(theirs)
        assert plain(ours) == plain(theirs)
        assert plain(ours) == plain(theirs)  # another epoch


def test_a_samplers_order_is_cut_into_batches():
    data, order = TensorDataset(torch.arange(9)), [8, 1, 5, 5, 0]
    theirs = DataLoader(data, sampler=order, batch_size=2)
    ours = from_dataset(data, sampler=order, batch_size=2, collate_fn=torch.utils.data.default_collate)
    assert [plain(batch) for batch in ours.open(inline=True)] == [plain(batch) for batch in theirs]


def test_a_batch_is_fetched_with_one_call_if_the_dataset_can():
    [batch] = from_dataset(Together(4), batch_size=4).open(inline=True)
    assert batch["alone"].tolist() == [False] * 4


def test_shuffled_batches_have_the_order_of_shuffled_samples():
    single = from_dataset(range(10), shuffle=True).with_options(seed=5)
    batched = from_dataset(range(10), shuffle=True, batch_size=4).with_options(seed=5)
    with single.open(inline=True) as samples, batched.open(inline=True) as batches:
        for _ in range(2):
            assert [index for batch in plain(batches) for index in batch] == list(samples)


@pytest.mark.parametrize("dataset", [list(range(11)), Counting(11)], ids=["map", "iterable"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_the_batches(dataset, drop_last):
    config = make_config(dataset=dataset, batch_size=2, drop_last=drop_last)
    ranks = [plain(Pipeline(config, inline=True, rank=rank, world_size=3)) for rank in range(3)]
    assert ranks == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], *([] if drop_last else [[10]])]]
    for rank in range(3):
        with Pipeline(config, inline=True, rank=rank, world_size=3) as pipeline:
            pipeline.start()
            assert len(pipeline) == len(ranks[rank])


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_a_resume_between_batches_is_exact(kind):
    class Stream:  # local, so that no worker imports this module and torch
        def __len__(self):
            return 7

        def __iter__(self):
            return iter(range(7))

    dataset = Stream() if kind == "iterable" else list(range(7))
    config = make_config(dataset=dataset, batch_size=2, collate_fn=tuple)
    with Pipeline(config) as pipeline:
        batches = iter(pipeline)
        first = [next(batches), next(batches)]
        state = pipeline.state_dict()
        rest = list(batches)
    assert [*first, *rest] == [(0, 1), (2, 3), (4, 5), (6,)]
    with Pipeline(config) as pipeline:
        assert len(pipeline) == 4
        pipeline.load_state_dict(state)
        assert list(pipeline) == rest
        assert list(pipeline) == [*first, *rest]
        assert pipeline.progress().samples_out == 3 + 7


def test_batch_size_excludes_batch_sampler():
    with pytest.raises(ValueError, match="`batch_sampler` and `batch_size` exclude each other"):
        DatasetSource([1, 2], batch_sampler=[[0]], batch_size=2)


# ------------------------------------------------------------------ samplers


def test_a_batch_sampler_as_sampler_gives_the_dataset_lists():
    data, sampler = torch.arange(10) * 10, BatchSampler(range(10), 4, drop_last=False)
    theirs = DataLoader(data, sampler=sampler, batch_size=None)
    with Pipeline(make_config(dataset=data, sampler=sampler), inline=True) as pipeline:
        assert [item.tolist() for item in pipeline] == [item.tolist() for item in theirs]
        assert pipeline.progress().samples_out == 10


ITERATORS = {
    "sampler": lambda: {"sampler": iter([3, 1, 2])},
    "generator": lambda: {"sampler": (index for index in [3, 1, 2])},
    "batch_sampler": lambda: {"batch_sampler": iter([[3, 1]])},
    "inside an object": lambda: {"batch_sampler": BatchSampler(iter([3, 1]), 2, drop_last=False)},
    "inside a config": lambda: {"batch_sampler": {"uses": BatchSampler, "with": {"sampler": iter([3, 1])}}},
}


def open_builder(**arguments: Any) -> None:
    from_dataset(range(9), **arguments).open(inline=True)


def open_loader(**arguments: Any) -> None:
    Loader(make_config(dataset=range(9), **arguments), inline=True)


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS)
@pytest.mark.parametrize("use", [open_builder, open_loader])
def test_a_sampler_that_is_an_iterator_is_refused_with_the_fix(make, use):
    message = r"sampler` is an iterator \(.*\), which can be read only once(.|\n)*pass a list, or a class or function"
    with pytest.raises(ConfigError, match=message):
        use(**make())


def test_a_function_that_returns_one_iterator_twice_is_refused_in_the_second_epoch():
    iterator = iter([0, 1])
    arguments = {"dataset": [1, 2], "sampler": {"uses": lambda: iterator}}
    source = build_target("stagepipe.sources.dataset", arguments)
    source.begin(0, 0)
    with pytest.raises(TypeError, match="creates a new one for each epoch"):
        source.begin(1, 0)


# ------------------------------------------------------------------ lengths of streams


class Unsized(IterableDataset[int]):
    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_an_iterable_datasets_length_is_the_loaders():
    with Loader(make_config(dataset=Counting(7)), inline=True) as loader:
        assert len(loader) == 7
    with Loader(make_config(dataset=Counting(7)), inline=True, limit=5, rank=1, world_size=2) as loader:
        assert len(loader) == 2
    with from_source(Counting(7)).batch(2).open(inline=True) as pipeline:
        assert len(pipeline) == 4


def test_a_length_that_cannot_be_computed_is_unknown():
    with Loader(make_config(dataset=Unsized()), inline=True) as loader:
        with pytest.raises(TypeError):
            len(loader)
        assert len(list(loader)) == 3


# ------------------------------------------------------------------ workers and shards


def test_each_worker_is_initialized_and_knows_itself():
    builder = from_dataset(Recorder(), worker_init_fn=record_worker, workers=2).with_options(seed=11)
    with builder.open() as pipeline:
        samples = list(pipeline)
    assert all(sample["count"] == 2 and sample["init"] == [sample["id"]] for sample in samples)
    assert all(sample["seed"] == 11 + sample["id"] for sample in samples)


def test_inline_there_is_no_worker():
    called = []
    assert list(from_dataset(range(3), worker_init_fn=called.append).open(inline=True)) == [0, 1, 2]
    assert called == []


def test_shards_are_read_one_after_the_other():
    builder = from_dataset(Counting(7), shards=3)
    assert list(builder.open(inline=True)) == [0, 3, 6, 1, 4, 2, 5]
    assert get_worker_info() is None


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_stay_inside_their_shard_as_in_a_data_loader(drop_last):
    arguments = {"batch_size": 2, "drop_last": drop_last}
    ours = from_dataset(Counting(10), shards=2, **arguments).open(inline=True)
    theirs = DataLoader(Counting(10), num_workers=2, multiprocessing_context="fork", **arguments)
    assert sorted(plain(ours)) == sorted(plain(theirs))


def test_ranks_share_the_shards():
    config = make_config(dataset=Counting(8), shards=4)
    ranks = [list(Pipeline(config, inline=True, rank=rank, world_size=2)) for rank in range(2)]
    assert ranks == [[0, 4, 2, 6], [1, 5, 3, 7]]


def test_shards_resume_exactly_with_another_number_of_workers():
    config = make_config(dataset=Counting(12), shards=4, worker_init_fn=record_nothing)
    expected = list(Pipeline(config, inline=True))
    with Pipeline(config, ["source.workers=2"]) as pipeline:
        samples = iter(pipeline)
        assert [next(samples) for _ in range(5)] == expected[:5]  # inside the second shard
        state = pipeline.state_dict()
    with Pipeline(config) as pipeline:
        pipeline.load_state_dict(state)
        assert list(pipeline) == expected[5:]


def record_nothing(worker: int) -> None:
    assert get_worker_info().id == worker  # type: ignore[union-attr]


def test_without_torch_the_item_is_the_shard():
    class Plain:
        def __iter__(self):
            return iter([context().item[0]])

    assert list(from_dataset(Plain(), shards=3).open(inline=True)) == [0, 1, 2]


def test_a_map_style_dataset_has_no_shards():
    with pytest.raises(Exception, match="list is map-style, and its indices are split between workers anyway"):
        list(from_dataset([1, 2], shards=2).open(inline=True))
