"""`stagepipe.torch.DataLoader` gives what torch's class gives, and resumes."""

import functools
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import types
import weakref

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, get_worker_info

from stagepipe import RunError, UsageError
from stagepipe.torch import DataLoader
from stagepipe.torch.data_loader import _find_modules
from tests.support.processes import list_run_processes

pytestmark = pytest.mark.timeout(300)


class Images(Dataset):
    def __init__(self, count=30):
        self.count = count
        self.offset = 0

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3, 4, 4), float(index + self.offset)), index, {"name": str(index), "array": np.arange(2)}


class Noise(Images):
    def __getitem__(self, index):
        return index, torch.rand(2)


class Numbers(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from range(info.id, 20, info.num_workers) if info else range(20)

    def __len__(self):
        return 20

    def set_epoch(self, epoch):
        raise AssertionError("the training loop calls this")


class Lengths(IterableDataset):
    """Of two workers, the first has fewer samples."""

    def __init__(self):
        self.offset = 0

    def __iter__(self):
        info = get_worker_info()
        yield from range(self.offset, self.offset + 5 + 8 * info.id)

    def __len__(self):
        return 18


class Noises(IterableDataset):
    def __iter__(self):
        return iter([torch.rand(1), torch.rand(1)])


class EveryThird:
    def __iter__(self):
        return iter(range(0, 30, 3))

    def __len__(self):
        return 10


def keep(samples):
    return samples


def describe(value):
    """Return the value with its types, for comparison."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value), value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: describe(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [describe(each) for each in value]
    return value


def read_epochs(cls, dataset, **options):
    torch.manual_seed(3)
    loader = cls(dataset, **options)
    return [describe(list(loader)), describe(list(loader)), torch.rand(1).item(), len(loader)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 4, "shuffle": True, "drop_last": True},
        {"batch_size": 4, "shuffle": True, "num_workers": 2},
        {"batch_size": None},
        {"batch_size": 4, "collate_fn": keep},
        {"batch_size": 4, "sampler": EveryThird()},
        {"batch_sampler": BatchSampler(EveryThird(), 4, drop_last=False)},
    ],
    ids=" ".join,
)
def test_batches_and_later_draws_are_those_of_torch(options):
    found = read_epochs(DataLoader, Images(), **options)
    options.pop("num_workers", None)  # torch's batches do not depend on it
    assert found == read_epochs(torch.utils.data.DataLoader, Images(), **options)


def test_a_stream_is_batched_as_torch_does():
    expected = read_epochs(torch.utils.data.DataLoader, Numbers(), batch_size=3, drop_last=True)
    assert read_epochs(DataLoader, Numbers(), batch_size=3, drop_last=True) == expected


@pytest.mark.parametrize("options", [{"batch_size": 3, "num_workers": 2}, {"batch_size": None, "num_workers": 1}])
def test_workers_of_a_stream_take_turns_as_those_of_torch(options):
    expected = read_epochs(torch.utils.data.DataLoader, Lengths(), **options)
    assert read_epochs(DataLoader, Lengths(), **options) == expected


def test_workers_of_a_stream_in_any_order():
    batches = list(DataLoader(Numbers(), batch_size=3, num_workers=2, in_order=False))
    assert sorted(torch.cat(batches).tolist()) == list(range(20))


def move(worker):
    get_worker_info().dataset.offset = 100 * worker


def test_an_init_function_changes_the_stream_of_its_worker():
    options = {"batch_size": 3, "num_workers": 2, "worker_init_fn": move}
    assert read_epochs(DataLoader, Lengths(), **options) == read_epochs(
        torch.utils.data.DataLoader, Lengths(), **options
    )


@pytest.mark.parametrize("yielded", [0, 1, 4])
def test_a_resumed_stream_goes_on_with_the_worker_whose_turn_it_was(yielded):
    loader = DataLoader(Lengths(), batch_size=3, num_workers=2)
    batches = iter(loader)
    for _ in range(yielded):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = DataLoader(Lengths(), batch_size=3, num_workers=2)
    resumed.load_state_dict(state)
    assert describe(list(resumed)) == describe(list(batches))


def test_a_state_of_other_workers_of_a_stream_is_refused():
    loader = DataLoader(Lengths(), num_workers=2)
    batches = iter(loader)
    next(batches)
    other = DataLoader(Lengths(), num_workers=1)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="the state was saved with num_workers=2, found 1"):
        iter(other)


def test_each_worker_of_a_stream_draws_its_own_numbers():
    found = torch.cat(list(DataLoader(Noises(), num_workers=2))).flatten().tolist()
    assert len(found) == len(set(found)) == 4


def test_random_batches_do_not_depend_on_the_workers():
    assert read_epochs(DataLoader, Noise(), num_workers=0) == read_epochs(DataLoader, Noise(), num_workers=2)


def test_a_generator_is_drawn_from_as_torch_does():
    orders = []
    for cls in (DataLoader, torch.utils.data.DataLoader):
        generator = torch.Generator().manual_seed(7)
        loader = cls(range(20), shuffle=True, generator=generator)
        orders.append([describe(list(loader)), describe(list(loader)), generator.initial_seed(), torch.rand(1).shape])
    assert orders[0] == orders[1]


def test_each_epoch_reads_the_dataset_as_it_is_then():
    dataset = Images(2)
    loader = DataLoader(dataset, num_workers=1)
    assert [batch[0].max().item() for batch in loader] == [0, 1]
    dataset.offset = 10
    assert [batch[0].max().item() for batch in loader] == [10, 11]


def test_workers_that_are_kept_get_the_order_of_each_iteration():
    epochs = []
    for cls in (DataLoader, torch.utils.data.DataLoader):
        torch.manual_seed(3)
        loader = cls(range(20), shuffle=True, num_workers=1, persistent_workers=True)
        list(loader)
        iter(loader)
        epochs.append(describe(list(loader)))
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize("dataset", [Images(), Numbers()], ids=lambda dataset: type(dataset).__name__)
def test_an_epoch_that_is_left_ends_its_workers_and_keeps_state_and_report(dataset):
    torch.manual_seed(3)
    loader = DataLoader(dataset, batch_size=2, num_workers=2)
    whole = describe(list(loader))
    others = list_run_processes()  # of loaders of other tests
    threads = threading.active_count()
    for number, _ in enumerate(loader):
        if number == 2:
            workers = list_run_processes() - others
            break
    assert len(workers) >= 2
    assert not list_run_processes() & workers
    assert threading.active_count() <= threads
    assert loader.report().run.items_out
    resumed = DataLoader(dataset, batch_size=2, num_workers=2)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert describe(list(resumed))[1] == whole[1][3:]
    assert describe(list(loader)) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_epoch_that_was_left_a_generator_gives_the_order_of_the_original(workers):
    orders = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        generator = torch.Generator().manual_seed(3)
        loader = kind(range(60), batch_size=8, shuffle=True, generator=generator, num_workers=workers)
        next(iter(loader))
        orders.append([batch.tolist() for _ in range(2) for batch in loader])
        orders[-1].append(torch.rand(1, generator=generator).item())
    assert orders[0] == orders[1]


def test_a_generator_from_which_the_loop_draws_keeps_its_draws_after_a_break():
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(range(60), batch_size=8, shuffle=True, generator=generator)
    batches = iter(loader)
    next(batches)
    torch.rand(1, generator=generator)
    state = generator.get_state()
    del batches
    assert torch.equal(generator.get_state(), state)


def test_the_state_of_another_loader_is_refused():
    with pytest.raises(UsageError, match=r"this is not a state of stagepipe\.torch\.DataLoader: it has no 'loader'"):
        DataLoader(range(4)).load_state_dict({"_snapshot": {}})


class WithGap(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {}[index] if index == 5 else index


def test_an_error_in_a_batch_names_the_index_of_the_sample():
    with pytest.raises(KeyError) as caught:
        list(DataLoader(WithGap(), batch_size=4, num_workers=1))
    assert "at index 5 of the dataset" in "".join(traceback.format_exception(caught.value))


def test_a_pipe_that_was_open_at_the_start_of_an_epoch_has_its_end_after_it_was_left():
    reader, writer = os.pipe()
    loader = DataLoader(range(100), num_workers=1)  # it outlives its epoch
    next(iter(loader))
    os.close(writer)
    os.set_blocking(reader, False)
    assert os.read(reader, 1) == b""  # else BlockingIOError: a worker holds the other end
    os.close(reader)


def test_an_epoch_in_a_cycle_is_left_by_the_garbage_collector_of_any_thread():
    loader = DataLoader(range(100), num_workers=1)
    cycle = [iter(loader)]
    cycle.append(cycle)
    next(cycle[0])
    children = list_run_processes()
    del cycle
    collector = threading.Thread(target=gc.collect)
    collector.start()
    collector.join()
    assert len(list_run_processes()) < len(children)


def test_kept_workers_outlive_an_epoch_that_is_left():
    loader = DataLoader(range(10), num_workers=1, persistent_workers=True)
    next(iter(loader))
    children = list_run_processes()
    assert len(list(loader)) == 10
    assert children <= list_run_processes()


class ShufflesAtOnce:
    """Draws in `__iter__`, and not when its iterator is asked for the first."""

    def __iter__(self):
        return iter(torch.randperm(12).view(4, 3).tolist())

    def __len__(self):
        return 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_at_once_gives_the_order_that_torch_has(workers):
    options = {"batch_sampler": ShufflesAtOnce(), "num_workers": workers}
    dataset = range(12)
    expected = read_epochs(torch.utils.data.DataLoader, dataset, **options)
    assert read_epochs(DataLoader, dataset, **options) == expected


class WithoutEnd:
    """As detectron2's TrainingSampler."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        while True:
            yield from torch.randperm(10, generator=generator).tolist()


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_a_sampler_without_end_is_read_in_parts_and_resumed(monkeypatch, options):
    monkeypatch.setattr("stagepipe.torch.data_loader._PART_INDICES", 8)
    options = {**options, "batch_size": 2, "sampler": WithoutEnd()}
    expected = list(itertools.islice(torch.utils.data.DataLoader(range(10), batch_size=2, sampler=WithoutEnd()), 20))
    loader = DataLoader(range(10), **options)
    batches = iter(loader)
    found = list(itertools.islice(batches, 11))
    state = loader.state_dict()
    assert describe(found + list(itertools.islice(batches, 9))) == describe(expected)
    resumed = DataLoader(range(10), **options)
    resumed.load_state_dict(state)
    assert describe(list(itertools.islice(resumed, 9))) == describe(expected[11:])


class Stuck(IterableDataset):
    def __iter__(self):
        yield 1
        threading.Event().wait()


@pytest.mark.parametrize("options", [{}, {"in_order": False}], ids=str)
def test_a_stream_that_makes_no_batch_in_time_is_an_error(options):
    batches = iter(DataLoader(Stuck(), num_workers=2, timeout=5, **options))
    assert next(batches).tolist() == [1]
    with pytest.raises(RunError, match="made no batch within the `timeout` of 5 s"):
        list(batches)


def test_two_iterations_at_once():
    loader = DataLoader(range(6), batch_size=2)
    pairs = [(one.tolist(), other.tolist()) for one, other in zip(loader, loader, strict=True)]
    assert pairs == [([0, 1], [0, 1]), ([2, 3], [2, 3]), ([4, 5], [4, 5])]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_a_resumed_epoch_has_the_batches_that_were_left(options):
    torch.manual_seed(3)
    loader = DataLoader(Noise(), batch_size=4, shuffle=True, **options)
    list(loader)
    batches = iter(loader)
    list(itertools.islice(batches, 3))
    state = json.loads(json.dumps(loader.state_dict()))
    rest = describe(list(batches))
    assert loader.state_dict() == {}

    torch.manual_seed(4)
    resumed = DataLoader(Noise(), batch_size=4, shuffle=True, **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    before = torch.get_rng_state()
    assert describe(list(resumed)) == rest
    assert torch.equal(torch.get_rng_state(), before)
    assert len(list(resumed)) == 8


def test_a_state_from_between_epochs_ends_the_epoch_under_way():
    loader = DataLoader(range(4))
    state = loader.state_dict()
    next(iter(loader))
    loader.load_state_dict(state)
    assert loader.state_dict() == state == {}
    assert len(list(loader)) == 4


def test_a_state_of_another_order_is_refused():
    loader = DataLoader(Images(), batch_size=4, shuffle=True)
    next(iter(loader))
    resumed = DataLoader(Images(29), batch_size=4, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="does not repeat the order of this state"):
        iter(resumed)


class Wrapper:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


def test_a_loader_of_a_library_is_taken_over():
    torch.manual_seed(3)
    theirs = torch.utils.data.DataLoader(Images(), 4, sampler=RandomSampler(Images()), drop_last=True)
    expected = describe(list(theirs))
    wrapper = Wrapper(theirs)
    assert DataLoader.take_over(wrapper) is wrapper
    assert isinstance(wrapper.loader, DataLoader)
    torch.manual_seed(3)
    assert describe(list(wrapper)) == expected
    assert DataLoader.take_over(wrapper.loader) is wrapper.loader


def test_a_module_that_is_taken_over_makes_our_loaders():
    library = types.ModuleType("library")
    library.DataLoader = torch.utils.data.DataLoader
    assert DataLoader.take_over(library) is library
    assert DataLoader.take_over(library).DataLoader is DataLoader
    with pytest.raises(UsageError, match=r"take_over\(itertools\): the module has no `DataLoader`"):
        DataLoader.take_over(itertools)


class CollatesAndHoldsItsLoader:
    loader = None

    def __call__(self, samples):
        return samples


def test_a_loader_can_be_sent_to_its_own_workers():
    collate = CollatesAndHoldsItsLoader()
    collate.loader = DataLoader(range(4), batch_size=2, num_workers=1, collate_fn=collate)
    assert [list(collate.loader) for _ in range(2)] == [[[0, 1], [2, 3]]] * 2


class DiesOnce(Images):
    """Holds what cannot be pickled, and ends the process at the first read of an index."""

    def __init__(self, marker):
        super().__init__()
        self.lock = threading.Lock()
        self.reference = weakref.ref(self)
        self.marker = marker

    def __getitem__(self, index):
        with self.lock:
            if index == 7 and not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self.reference() is self, index, torch.rand(1)


def test_workers_have_what_cannot_be_pickled_and_a_killed_one_is_replaced(tmp_path):
    dataset = DiesOnce(tmp_path / "died")
    parameters = weakref.ref(dataset)
    loader = DataLoader(dataset, 4, num_workers=2, collate_fn=lambda samples: (parameters() is dataset, samples))
    torch.manual_seed(3)
    batches = list(loader)
    assert dataset.marker.exists()
    assert all(is_same and own for is_same, samples in batches for own, _, _ in samples)
    assert [index for _, samples in batches for _, index, _ in samples] == list(range(30))
    torch.manual_seed(3)
    assert describe(list(loader)) == describe(batches)


def test_what_cannot_be_pickled_is_refused_by_its_name_where_workers_get_copies():
    loader = DataLoader([0, threading.Lock()], num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(UsageError, match=r"source: `dataset` \(lock\) cannot be sent to a worker: TypeError") as caught:
        list(loader)
    assert 'multiprocessing_context="fork"' in caught.value.__notes__[0]


class Endless(torch.utils.data.DataLoader):
    def __iter__(self):
        while True:
            yield from super().__iter__()


def test_values_that_are_not_loaders_are_refused():
    with pytest.raises(UsageError, match=r"take_over\(Endless\): it has its own `__iter__`"):
        DataLoader.take_over(Endless(range(3)))
    with pytest.raises(UsageError, match=r"take_over\(list\): expected a torch.utils.data.DataLoader"):
        DataLoader.take_over([])
    with pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader(range(3), shuffle=True, sampler=EveryThird())
    with pytest.raises(UsageError, match="no report before"):
        DataLoader(range(3)).report()


class Broken(Images):
    def __getitem__(self, index):
        raise KeyError(index)


class Unreadable(IterableDataset):
    def __iter__(self):
        raise LookupError("no such stream")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_error_at_the_start_of_a_stream_has_its_own_type(workers):
    with pytest.raises(LookupError, match="no such stream"):
        list(DataLoader(Unreadable(), num_workers=workers))


class CountsAsItGoes(IterableDataset):
    """Is its own iterator, and starts again in `__iter__`."""

    def __iter__(self):
        self.count = 0
        return self

    def __next__(self):
        self.count += 1
        if self.count > 9:
            raise StopIteration
        return self.count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_is_its_own_iterator_is_read_once_and_resumed(workers):
    loader = DataLoader(CountsAsItGoes(), batch_size=2, num_workers=workers)
    batches = iter(loader)
    found = [next(batches).tolist(), next(batches).tolist()]
    resumed = DataLoader(CountsAsItGoes(), batch_size=2, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert found + [batch.tolist() for batch in resumed] == [[1, 2], [3, 4], [5, 6], [7, 8], [9]]


def test_an_error_of_the_dataset_has_its_own_type():
    with pytest.raises(KeyError):
        list(DataLoader(Broken()))


class Deadly(Images):
    def __getitem__(self, index):
        os._exit(7)


def test_an_error_that_names_a_key_says_that_there_is_no_config():
    with pytest.raises(RunError, match=r"exit code 7.*`source.on_error=skip`") as caught:
        list(DataLoader(Deadly(), num_workers=2))
    assert "`stagepipe.torch.Loader`" in caught.value.__notes__[0]


SCRIPT = """
import logging
import torch
from stagepipe.torch import DataLoader

logging.basicConfig(format="%(message)s")

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 3:
            logging.warning("three")
        return index ** 2

if __name__ == "__main__":
    loader = DataLoader(Squares(), batch_size=2, num_workers=2, collate_fn=lambda samples: samples)
    print("text that is still in the buffer when the workers are forked")
    print(list(loader))
    for batch in loader:
        break
    print(batch)
"""


def test_a_script_ends_in_mid_epoch(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    first, *others = result.stdout.splitlines()
    assert first.startswith("text"), result.stderr
    assert others == ["[[0, 1], [4, 9]]", "[0, 1]"]
    records = [line.rpartition(" ")[2] for line in result.stderr.splitlines()]
    assert records in (["three"], ["three"] * 2)  # the second epoch was left early


class Cropped(Images):
    def __init__(self):
        super().__init__()
        self.crop = torchvision.transforms.CenterCrop(2)


def test_the_modules_of_a_dataset_are_imported_before_its_workers_start():
    transforms = "torchvision.transforms.transforms"
    assert _find_modules((Cropped(), functools.partial(keep))) == {__name__, transforms}
    assert _find_modules((range(3), None, np.arange(3), str.upper, json.loads)) == set()


IMPORTING_SCRIPT = """
import scipy.ndimage
import torch
import torchvision
from stagepipe.torch import DataLoader
from stagepipe.torch.data_loader import _find_modules

def blur(number):
    return scipy.ndimage.gaussian_filter(number, 1)

class Blurred(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return blur(index)

if __name__ == "__main__":
    print(sorted(_find_modules([Blurred()])))
"""


def test_the_definitions_of_a_script_count_with_the_names_they_use(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(IMPORTING_SCRIPT)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout == "['scipy']\n", result.stderr
