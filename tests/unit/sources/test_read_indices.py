"""A dataset's source gives the indices of several items at once, where they are plain numbers."""

import numpy as np
import pytest

from stagepipe.plan import Shard, SubsetShard
from stagepipe.runtime.execution import SourceReader
from stagepipe.sources import DatasetSource

LETTERS = list("abcdefghij")


def read_chunk(item, count, *, limit=None, shard=Shard(), **arguments):  # noqa: B008 - frozen
    reader = SourceReader(DatasetSource(LETTERS, **arguments), 3, limit, shard)
    reader.seek(0, item)
    singly = [reader.read(number) for number in range(item, item + count) if number < reader.epoch_items]
    chunk = reader.read_chunk(item, count)
    return singly, None if chunk is None else chunk.to_list()


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True}, {"sampler": [5, 0, 7, 7, 2, 1, 9]}], ids=repr)
@pytest.mark.parametrize("shard", [Shard(), Shard(1, 2), Shard(2, 4, "pad"), SubsetShard(items=(0, 4, 5))], ids=repr)
def test_a_chunk_has_the_indices_of_its_items(arguments, shard):
    singly, chunk = read_chunk(0, 100, shard=shard, **arguments)
    assert chunk == (singly if len(singly) > 1 else None)
    assert all(type(index) is int for index in chunk or ())


def test_the_last_chunk_ends_with_the_epoch_or_the_limit():
    assert read_chunk(6, 100)[1] == [6, 7, 8, 9]
    assert read_chunk(2, 100, limit=5)[1] == [2, 3, 4]
    assert read_chunk(9, 100)[1] is None


@pytest.mark.parametrize(
    "sampler", [[np.int64(1), np.int64(2)], [(0, 1), (1, 2)], [True, False], [2**70, 2**71], [0, "a"]], ids=repr
)
def test_other_indices_go_one_by_one(sampler):
    assert read_chunk(0, 2, sampler=sampler)[1] is None


def test_lists_of_indices_go_one_by_one():
    assert read_chunk(0, 2, batch_size=2)[1] is None
    assert read_chunk(0, 2, batch_sampler=[[0, 1], [2, 3]])[1] is None
