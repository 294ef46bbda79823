"""Pinning without a GPU: blocks are registered once, as a whole, and unregistered at the end. CUDA is a stand-in."""

import gc
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stagepipe.torch import Loader
from stagepipe.torch.transfer import DeviceTransfer, PinnedBlocks
from stagepipe.transport import MIN_PUNCH_BYTES
from tests.support.kills import kill
from tests.support.pipelines import pipeline, stage


class Event:
    """An event of a stream that passes it when the test says so."""

    def __init__(self, cuda: "Cuda") -> None:
        self.cuda = cuda

    def query(self) -> bool:
        return not self.cuda.is_busy

    def synchronize(self) -> None:
        self.cuda.is_busy = False


class Cuda:
    """Records what is registered and refuses to register a page twice, as CUDA does."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: dict[int, int] = {}
        self.calls = 0
        self.waits = 0
        self.is_busy = False

    def record_events(self) -> list[Event]:
        return [Event(self)]

    def wait_for_copies(self) -> None:
        self.waits += 1
        self.is_busy = False

    def register(self, address: int, nbytes: int) -> int:
        self.calls += 1
        if self.error:
            return self.error
        for other, size in self.registered.items():
            if address // 4096 <= (other + size - 1) // 4096 and other // 4096 <= (address + nbytes - 1) // 4096:
                return 712  # cudaErrorHostMemoryAlreadyRegistered
        assert is_mapped(address)
        self.registered[address] = nbytes
        return 0

    def unregister(self, address: int) -> int:
        assert is_mapped(address), "CUDA would have read other memory"
        assert not self.is_busy, "a copy is in progress"
        del self.registered[address]
        return 0


def is_mapped(address: int) -> bool:
    """Whether an arena of stagepipe is mapped at an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
        if start <= address < end:
            return "memfd:stagepipe" in line
    return False


def loader(cuda: Cuda, nbytes: int = 200_000, count: int = 60, **keys: Any) -> Loader:
    config = pipeline(stage("filled", with_={"nbytes": nbytes}), source=count, **keys)
    created = Loader(config)
    created._transfer = DeviceTransfer(pin_memory=True, find_lease=created.pipeline._find_lease, registrar=cuda)
    created.pipeline._keep_idle_pages = created._transfer.is_pinning
    return created


def test_each_block_is_registered_once_however_often_it_is_used():
    cuda = Cuda()
    with loader(cuda) as items:
        for _ in range(3):
            for item in items:
                address = item["image"].untyped_storage().data_ptr()
                assert any(
                    start <= address and address + 200_000 <= start + size for start, size in cuda.registered.items()
                )
        assert 1 <= cuda.calls == len(cuda.registered) < 90  # half of the 180 items: blocks are used again
    assert not cuda.registered, "close unregisters all"


def test_blocks_of_several_sizes_share_no_page():
    cuda = Cuda()
    config = pipeline(stage("varied"), source=80)
    with Loader(config) as items:
        transfer = DeviceTransfer(pin_memory=True, find_lease=items.pipeline._find_lease, registrar=cuda)
        for item in items:
            transfer(item)
    assert cuda.calls == len(cuda.registered) > 3


def test_small_blocks_are_not_registered():
    cuda = Cuda()
    with loader(cuda, MIN_PUNCH_BYTES - 1) as items:
        assert sum(1 for _ in items) == 60
    assert not cuda.calls


def test_memory_outside_of_blocks_is_not_registered():
    pinned_blocks = PinnedBlocks(lambda address, nbytes: None, Cuda())
    tensor = torch.zeros(1 << 20)
    assert not pinned_blocks.pin(tensor.data_ptr(), tensor.nbytes)


def test_a_refusal_warns_once_and_loses_nothing():
    cuda = Cuda(error=2)
    with (
        loader(cuda) as items,
        pytest.warns(RuntimeWarning, match=r"refused to lock \d+ bytes .* \(error 2\)") as caught,
    ):
        values = [int(item["image"][0]) for item in items]
    assert values == list(range(60))
    assert len(caught) == 1
    assert cuda.calls == 1


def test_the_workers_keep_the_pages_that_a_device_reads():
    with loader(Cuda()) as items:
        assert items.pipeline.make_plan().keep_idle_pages
    with Loader(pipeline(source=3)) as items:
        assert not items.pipeline.make_plan().keep_idle_pages


def test_a_block_is_reused_only_after_the_copies_that_the_caller_started():
    """The caller drops each batch at once, as after `batch.to("cuda", non_blocking=True)` on a busy device."""
    cuda = Cuda()
    cuda.is_busy = True
    with loader(cuda, count=300) as items:  # many more than the workers have made by then
        read_by_the_device = []
        for item in itertools.islice(items, 12):
            read_by_the_device.append(item["image"].data_ptr())
            del item
        assert len(set(read_by_the_device)) == 12, "no event has passed, so no worker may write into these blocks"
        cuda.is_busy = False
        assert {item["image"].data_ptr() for item in items} & set(read_by_the_device), "now they are reused"


def test_close_waits_for_copies_before_it_unregisters():
    cuda = Cuda()
    with loader(cuda) as items:
        next(iter(items))
        cuda.is_busy = True
    assert cuda.waits == 1
    assert not cuda.registered


def test_registrations_end_with_the_mapping_that_they_were_made_for():
    """After a death the arenas are mapped again, and CUDA would go on reading the pages of the earlier mapping."""
    cuda = Cuda()
    with loader(cuda, count=60, window=4) as items:
        for number, item in enumerate(items):
            assert int(item["image"][0]) == number
            assert all(map(is_mapped, cuda.registered))
            if number % 20 == 19:
                kill(items.pipeline, number // 20 % 2)
        assert cuda.waits == 2, "each time, the copies from the earlier mapping were waited for"
    assert not cuda.registered


def test_a_loader_that_is_not_closed_unregisters_its_blocks():
    cuda = Cuda()
    items = loader(cuda)
    iterator = iter(items)
    next(iterator)
    assert cuda.registered
    del items, iterator
    gc.collect()
    assert not cuda.registered


def test_a_tensor_of_another_device_is_copied_straight_to_shared_memory():
    config = pipeline(stage("hosted"), source=5)
    with Loader(config) as items:
        for number, item in enumerate(items):
            np.testing.assert_array_equal(item, np.full(100_000, number, np.float32))
            assert items.pipeline._find_lease(item.data_ptr(), item.nbytes) is not None
    hop = items.report().hops[1]
    assert hop.bytes.copied == 0
    assert hop.bytes.zero_copy == 5 * 400_000
