"""Epochs of a torch `Loader` are the same with workers that come and go as without."""

import random
import time

import pytest

from stagepipe.forecast.scaling import Decision
from stagepipe.testing import scaling_policy
from stagepipe.torch import Loader
from tests.support.pipelines import batch, pipeline, plain, stage


class RandomPolicy:
    """Asks for random numbers of workers of the first stage, ten times a second."""

    def __init__(self):
        self.rnd = random.Random(2)
        self.requests = 0

    def decide(self, sample):
        if self.rnd.random() < 0.8:
            return None
        self.requests += 1
        return Decision(1, self.rnd.randint(1, 3), "at random", 0.0)


def make_config(workers):
    return pipeline(stage("image", with_={"size": 60}, workers=workers), batch(4), source=200)


def read_epochs(workers, pause_s=0.0):
    found = []
    with Loader(make_config(workers)) as loader:
        for _ in range(3):
            for item in loader:
                found.append(plain(item))
                time.sleep(pause_s)
    return found


@pytest.mark.timeout(120)
def test_epochs_of_a_loader_whose_workers_come_and_go():
    policy = RandomPolicy()
    with scaling_policy(policy):
        found = read_epochs({"min": 1, "max": 3}, pause_s=0.01)
    assert len(found) == 150
    assert found == read_epochs(1)
    assert policy.requests >= 5
