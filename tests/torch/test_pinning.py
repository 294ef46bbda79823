"""What of pinning a CPU can show: which blocks are registered, once each, whole, and given back. CUDA is a stand-in."""

import numpy as np
import pytest
import torch

from stagepipe.torch import Loader
from stagepipe.torch.pinning import Pins
from stagepipe.torch.transfer import Transfer
from stagepipe.transport import PUNCHED_FROM
from tests.zoo.pipelines import pipeline, stage


class Cuda:
    """Keeps what is registered, and minds what CUDA minds: no page twice."""

    def __init__(self, error: int = 0) -> None:
        self.error, self.now, self.calls = error, {}, 0

    def register(self, address: int, nbytes: int) -> int:
        self.calls += 1
        if self.error:
            return self.error
        for other, size in self.now.items():
            if address // 4096 <= (other + size - 1) // 4096 and other // 4096 <= (address + nbytes - 1) // 4096:
                return 712  # cudaErrorHostMemoryAlreadyRegistered
        self.now[address] = nbytes
        return 0

    def unregister(self, address: int) -> int:
        del self.now[address]
        return 0


def loader(cuda: Cuda, nbytes: int = 200_000, count: int = 60) -> Loader:
    config = pipeline(stage("filled", with_={"nbytes": nbytes}), source=count)
    made = Loader(config)
    made._transfer = Transfer(pin_memory=True, find=made.pipeline.block_of, host=cuda)
    made.pipeline.keep_pages = made._transfer.pins
    return made


def test_each_block_is_registered_once_however_often_it_is_used():
    cuda = Cuda()
    with loader(cuda) as items:
        for _ in range(3):
            for item in items:
                address = item["image"].untyped_storage().data_ptr()
                assert any(at <= address and address + 200_000 <= at + size for at, size in cuda.now.items())
        assert 1 <= cuda.calls == len(cuda.now) <= 40
    assert not cuda.now, "close gives all back"


def test_blocks_of_several_sizes_share_no_page():
    cuda = Cuda()
    config = pipeline(stage("varied"), source=80)
    with Loader(config) as items:
        transfer = Transfer(pin_memory=True, find=items.pipeline.block_of, host=cuda)
        for item in items:
            transfer(item)
    assert cuda.calls == len(cuda.now) > 3


def test_small_things_are_not_worth_it():
    cuda = Cuda()
    with loader(cuda, PUNCHED_FROM - 1) as items:
        assert sum(1 for _ in items) == 60
    assert not cuda.calls


def test_what_lies_in_no_block_is_left_alone():
    pins = Pins(lambda address, nbytes: None, Cuda())
    tensor = torch.zeros(1 << 20)
    assert not pins.pin(tensor.data_ptr(), tensor.nbytes)


def test_a_refusal_is_told_once_and_nothing_is_lost():
    cuda = Cuda(error=2)
    with loader(cuda) as items, pytest.warns(RuntimeWarning, match=r"refuses to lock \d+ bytes .* \(error 2\)") as told:
        found = [int(item["image"][0]) for item in items]
    assert found == list(range(60))
    assert len(told) == 1
    assert cuda.calls == 1


def test_the_workers_keep_the_pages_that_a_device_reads():
    with loader(Cuda()) as items:
        assert items.pipeline.plan.keep_pages
    with Loader(pipeline(source=3)) as items:
        assert not items.pipeline.plan.keep_pages


def test_a_tensor_of_another_device_goes_straight_to_shared_memory():
    config = pipeline(stage("hosted"), source=5)
    with Loader(config) as items:
        for number, item in enumerate(items):
            np.testing.assert_array_equal(item, np.full(100_000, number, np.float32))
            assert items.pipeline.block_of(item.data_ptr(), item.nbytes) is not None
    hop = items.report().hops[1]
    assert hop.bytes.copied == 0
    assert hop.bytes.zero_copy == 5 * 400_000
