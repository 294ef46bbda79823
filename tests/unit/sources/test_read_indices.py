"""A dataset's source gives the indices of several items at once, where they are plain numbers."""

import numpy as np
import pytest

from stagepipe.plan import Shard, SubsetShard
from stagepipe.runtime.execution import SourceReader
from stagepipe.sources import DatasetSource, NumbersSource

LETTERS = list("abcdefghij")


def read_together(source, item, count, *, limit=None, shard=Shard()):  # noqa: B008 - frozen
    reader = SourceReader(source, 3, limit, shard)
    reader.seek(0, item)
    singly = [reader.read(number) for number in range(item, item + count) if number < reader.epoch_items]
    return singly, list(reader.read_together(item, count))


def read_dataset(item, count, *, limit=None, shard=Shard(), **arguments):  # noqa: B008 - frozen
    return read_together(DatasetSource(LETTERS, **arguments), item, count, limit=limit, shard=shard)


SHARDS = [Shard(), Shard(1, 2), Shard(2, 4, "pad"), SubsetShard(items=(0, 4, 5))]


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True}, {"sampler": [5, 0, 7, 7, 2, 1, 9]}], ids=repr)
@pytest.mark.parametrize("shard", SHARDS, ids=repr)
def test_a_chunk_has_the_indices_of_its_items(arguments, shard):
    singly, together = read_dataset(0, 100, shard=shard, **arguments)
    assert together == (singly if len(singly) > 1 else [])
    assert all(type(index) is int for index in together)


@pytest.mark.parametrize(
    "source", [LETTERS, tuple(LETTERS), range(5, 15), NumbersSource(10)], ids=["list", "tuple", "range", "numbers"]
)
@pytest.mark.parametrize("shard", SHARDS, ids=repr)
def test_items_that_take_no_code_of_the_user_are_read_together(source, shard):
    singly, together = read_together(source, 1, 100, shard=shard)
    assert together == (singly if len(singly) > 1 else [])


class Letters(list):
    """May do anything when an item is read."""


def test_items_of_a_users_class_are_read_one_by_one():
    assert read_together(Letters(LETTERS), 0, 10)[1] == []


def test_the_last_chunk_ends_with_the_epoch_or_the_limit():
    assert read_dataset(6, 100)[1] == [6, 7, 8, 9]
    assert read_dataset(2, 100, limit=5)[1] == [2, 3, 4]
    assert read_dataset(9, 100)[1] == []


@pytest.mark.parametrize(
    "sampler", [[np.int64(1), np.int64(2)], [(0, 1), (1, 2)], [True, False], [2**70, 2**71], [0, "a"]], ids=repr
)
def test_other_indices_go_one_by_one(sampler):
    assert read_dataset(0, 2, sampler=sampler)[1] == []


def test_lists_of_indices_go_one_by_one():
    assert read_dataset(0, 2, batch_size=2)[1] == []
    assert read_dataset(0, 2, batch_sampler=[[0, 1], [2, 3]])[1] == []
