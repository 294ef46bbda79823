"""Unbatch: the rows of a batch, without a copy."""

import random
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from stagepipe.core import is_generator
from stagepipe.stages import Batch, Unbatch


class Pair(NamedTuple):
    image: Any
    name: Any


@dataclass
class Record:
    image: Any


def test_it_is_recognized_as_a_generator():
    assert is_generator(Unbatch())
    assert isinstance(Unbatch()([1]), GeneratorType)


def test_it_inverts_batch():
    items = [{"x": np.full((2, 2), i), "t": torch.ones(2) * i, "p": Pair(np.ones(3) * i, str(i))} for i in range(3)]
    batch = Batch(3)
    for item in items:
        batch.add(item, 1)
    rows = list(Unbatch()(batch.flush(random.Random(0))[0][0]))
    for row, item in zip(rows, items, strict=True):
        np.testing.assert_array_equal(row["x"], item["x"])
        assert torch.equal(row["t"], item["t"])
        assert type(row["p"]) is Pair
        assert row["p"].name == item["p"].name


def test_rows_are_views():
    array, tensor = np.zeros((2, 3)), torch.zeros(2, 3)
    for row in Unbatch()((array, tensor)):
        assert np.shares_memory(row[0], array)
        assert row[1].untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_one_column_is_a_batch_too():
    assert [row.tolist() for row in Unbatch()(np.arange(4).reshape(2, 2))] == [[0, 1], [2, 3]]
    assert list(Unbatch()([{"x": 1}, {"x": 2}])) == [{"x": 1}, {"x": 2}]


def test_a_list_of_columns_gives_lists():
    assert list(Unbatch()([[1, 2], ["a", "b"]])) == [[1, "a"], [2, "b"]]


def test_dataclasses_are_structure():
    assert list(Unbatch()(Record([1, 2]))) == [Record(1), Record(2)]


def test_an_empty_batch_yields_no_rows():
    assert list(Unbatch()({"x": np.zeros((0, 3))})) == []


def test_different_lengths_are_named():
    with pytest.raises(ValueError, match=r"`x` 2, `m\.y` 3"):
        list(Unbatch()({"x": [1, 2], "m": {"y": np.zeros(3)}}))


@pytest.mark.parametrize("value", ["name", 3, np.array(1), None], ids=repr)
def test_a_field_without_rows_is_named(value: Any):
    with pytest.raises(TypeError, match=r"`name` is of type .* and has no rows"):
        list(Unbatch()({"x": [1, 2], "name": value}))
