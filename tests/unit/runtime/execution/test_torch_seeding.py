"""After its first item a worker seeds torch by a shorter way, which notices what a stage does to CUDA's seed."""

import pytest
import torch

from stagepipe.runtime.execution import seeding


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_lazy_seed_tracker", type(torch.cuda._lazy_seed_tracker)())
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="then nothing waits for the start of CUDA")
def test_a_seed_that_a_stage_sets_for_cuda_lasts_for_its_item():
    tracker = torch.cuda._lazy_seed_tracker
    assert seeding._make_torch_seeder() is None, "the first item is seeded the long way"
    seeding._seed_torch(1)
    seed = seeding._make_torch_seeder()
    torch.cuda.manual_seed_all(3)
    assert tracker.manual_seed_all_cb[0] is not seeding._seed_cuda_devices
    seed(4)
    assert tracker.manual_seed_all_cb[0] is seeding._seed_cuda_devices
    assert torch.initial_seed() == 4


def test_both_ways_give_the_same_draws():
    seeding._seed_torch(2**64 - 3)
    expected = torch.rand(3)
    seeding._make_torch_seeder()(2**64 - 3)
    assert torch.equal(torch.rand(3), expected)
