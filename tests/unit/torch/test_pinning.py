"""Pinning without a GPU: blocks are registered once, as a whole, and unregistered at the end. CUDA is a stand-in."""

import numpy as np
import pytest
import torch

from stagepipe.torch import Loader
from stagepipe.torch.pinning import PinnedBlocks
from stagepipe.torch.transfer import DeviceTransfer
from stagepipe.transport import MIN_PUNCH_BYTES
from tests.support.pipelines import pipeline, stage


class Cuda:
    """Records what is registered and refuses to register a page twice, as CUDA does."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: dict[int, int] = {}
        self.calls = 0

    def register(self, address: int, nbytes: int) -> int:
        self.calls += 1
        if self.error:
            return self.error
        for other, size in self.registered.items():
            if address // 4096 <= (other + size - 1) // 4096 and other // 4096 <= (address + nbytes - 1) // 4096:
                return 712  # cudaErrorHostMemoryAlreadyRegistered
        self.registered[address] = nbytes
        return 0

    def unregister(self, address: int) -> int:
        del self.registered[address]
        return 0


def loader(cuda: Cuda, nbytes: int = 200_000, count: int = 60) -> Loader:
    config = pipeline(stage("filled", with_={"nbytes": nbytes}), source=count)
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
        assert 1 <= cuda.calls == len(cuda.registered) <= 40
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
        assert items.pipeline.plan.keep_idle_pages
    with Loader(pipeline(source=3)) as items:
        assert not items.pipeline.plan.keep_idle_pages


def test_a_tensor_of_another_device_is_copied_straight_to_shared_memory():
    config = pipeline(stage("hosted"), source=5)
    with Loader(config) as items:
        for number, item in enumerate(items):
            np.testing.assert_array_equal(item, np.full(100_000, number, np.float32))
            assert items.pipeline._find_lease(item.data_ptr(), item.nbytes) is not None
    hop = items.report().hops[1]
    assert hop.bytes.copied == 0
    assert hop.bytes.zero_copy == 5 * 400_000
