"""Every generator that a stage reaches is seeded, once and differently; torch by a shorter way after the first item."""

import random
import time
from typing import Any

import albumentations
import numpy as np
import pytest
import torch

from stagepipe.runtime.execution import seeding
from stagepipe.runtime.execution.seeding import find_own_generators
from tests.support.own_generators import HOLDERS, by_global, make_augmentation


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_generator_held_anywhere_is_seeded(holder):
    function, other = HOLDERS[holder](), HOLDERS[holder]()
    draws = []
    for target, seed in ((function, 2**63 + 1), (function, 2**63 + 1), (other, 2**63 + 1), (function, 2)):
        reseed = find_own_generators(target)
        assert reseed is not None
        reseed(seed)
        draws.append(target(3))
    assert draws[0] == draws[1] == draws[2] != draws[3]


def test_generators_draw_differently_and_a_shared_one_is_seeded_once():
    shared = np.random.default_rng(1)
    twin = np.random.Generator(shared.bit_generator)
    generators = [shared, twin, np.random.default_rng(1), random.Random(1), random.Random(1), torch.Generator()]
    reseed = find_own_generators({"a": generators, "b": {"c": (generators, shared.random)}})
    assert reseed is not None
    reseed(7)
    first = [shared.random(), generators[2].random(), generators[3].random(), generators[4].random()]
    assert len(set(first)) == 4
    reseed(7)
    assert twin.random() == first[0]


def test_global_generators_keep_the_seed_of_the_item():
    from random import random as draw

    held = [draw, np.random.random, random._inst, np.random.mtrand._rand, torch.default_generator]
    assert find_own_generators(lambda: (held, random.random(), torch.rand(1))) is None
    assert find_own_generators([random.SystemRandom(), albumentations, torch.Generator]) is None


def test_a_cycle_ends_and_a_transform_seeds_its_members():
    holder: dict[str, Any] = {"transform": make_augmentation()}
    holder["self"] = [holder]
    assert len(find_own_generators(holder).args[0]) == 1
    inner = albumentations.Compose([albumentations.Lambda(image=by_global)])
    assert len(find_own_generators(inner).args[0]) == 3


def test_a_large_list_costs_little():
    holder = {"paths": [str(number) for number in range(1_000_000)], "rng": random.Random()}
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    started = time.process_time()
    assert len(find_own_generators([holder, deep]).args[0]) == 1
    assert time.process_time() - started < 1


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
