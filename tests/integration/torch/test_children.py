"""A DataLoader that its process has used serves a child of it too: with workers of the child's own."""

import multiprocessing

import pytest
import torch

from stagepipe.torch import DataLoader

pytestmark = pytest.mark.timeout(120)
BATCHES = [[0, 1], [2, 3], [4]]
_MAX_CHILD_S = 60


def read(loader):
    return [batch.tolist() for batch in loader]


def read_in_child(loader, results):
    torch.set_num_threads(4)
    results.send(read(loader))


@pytest.mark.parametrize(
    "child, workers, is_under_way",
    [("fork", "fork", False), ("fork", "fork", True), ("fork", "forkserver", True), ("spawn", "fork", True)],
)
def test_a_child_gets_the_same_batches(child, workers, is_under_way):
    loader = DataLoader(range(5), batch_size=2, num_workers=2, multiprocessing_context=workers)
    assert read(loader) == BATCHES
    epoch = iter(loader)
    rest = [next(epoch).tolist() for _ in range(1 if is_under_way else 3)]
    context = multiprocessing.get_context(child)
    results, end = context.Pipe(duplex=False)
    process = context.Process(target=read_in_child, args=(loader, end))
    process.start()
    try:
        assert results.poll(_MAX_CHILD_S)
        assert results.recv() == BATCHES
        process.join(_MAX_CHILD_S)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
    assert [*rest, *(batch.tolist() for batch in epoch)] == BATCHES
