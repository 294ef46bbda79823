"""Rows of samples make the batch that the samples make one by one; what rows cannot hold is refused."""

import dataclasses
import enum
import pickle
import random
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from stagepipe.stages import Batch, NotStackableError, make_rows
from tests.support.pipelines import plain

RNG = random.Random(0)


class Point(NamedTuple):
    x: float
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    image: np.ndarray
    label: int


class Color(enum.IntEnum):
    RED = 1


def make_sample(number: int) -> dict[str, Any]:
    return {
        "array": np.full((2, 3), number, np.float16),
        "strided": np.arange(12).reshape(3, 4).T[:, ::2] + number,
        "scalar": np.uint8(number),
        "time": np.datetime64("2020-01-01") + np.timedelta64(number, "D"),
        "record": Record(np.array([number], ">i4"), number),
        "tensor": torch.full((2,), number, dtype=torch.float16),
        "grad": torch.ones(2, requires_grad=True) * number,
        "image": tv_tensors.Image(torch.full((1, 2, 2), number, dtype=torch.uint8)),
        "numbers": [number, number / 3, number % 2 == 0],
        "point": Point(float(number), f"point {number}"),
        "empty": np.zeros((0, 3)),
        "objects": (None, b"b", 2j),
    }


def stack(samples):
    rows = make_rows(samples[0], len(samples) + 2)
    for row, sample in enumerate(samples):
        rows.put(row, sample)
    rows.trim(len(samples))
    return pickle.loads(pickle.dumps(rows, 5))


def test_ranges_of_rows_make_the_batches_of_single_samples():
    samples = [make_sample(number) for number in range(11)]
    rows, batch, single, found = stack(samples), Batch(size=4), Batch(size=4), []
    start = 0
    while start < len(samples):
        start += batch.add_rows(rows, start, len(samples))
        found += batch.flush(RNG) if batch.is_full else []
    found += batch.finish(RNG)
    expected = [output for sample in samples for output in (single.flush(RNG) if single.add(sample, 1) else [])]
    assert repr(plain(found)) == repr(plain(expected + single.finish(RNG)))


def test_rows_that_are_a_batch_become_it_without_a_copy():
    samples = [make_sample(number) for number in range(4)]
    rows, batch, single = stack(samples), Batch(size=4), Batch(size=4)
    addresses = [rows.column("array").array.ctypes.data, rows.column("tensor").tensor.data_ptr()]
    assert batch.add_rows(rows, 0, 4, passes_on=True) == 4
    ((found, count),) = batch.flush(RNG)
    for sample in samples:
        single.add(sample, 1)
    assert repr(plain([(found, count)])) == repr(plain(single.flush(RNG)))
    assert [found["array"].ctypes.data, found["tensor"].data_ptr()] == addresses
    assert rows.column("array").array is None, "nothing else holds the batch's arrays"


def test_rows_are_copied_where_a_stage_may_write_to_the_batch():
    rows, batch = stack([make_sample(number) for number in range(2)]), Batch(size=2)
    rows.column("array").array.flags.writeable = False
    batch.add_rows(rows, 0, 2)
    ((found, _),) = batch.flush(RNG)
    assert found["array"].flags.writeable


def test_rows_join_a_batch_that_single_samples_began():
    samples = [make_sample(number) for number in range(6)]
    batch, single = Batch(size=6), Batch(size=6)
    batch.add(samples[0], 1)
    assert batch.add_rows(stack(samples[1:5]), 1, 4) == 3
    for sample in (samples[0], *samples[2:5]):
        single.add(sample, 1)
    assert repr(plain(batch.finish(RNG))) == repr(plain(single.finish(RNG)))


def test_the_first_row_is_checked_as_a_single_sample_is():
    batch, single = Batch(size=4), Batch(size=4)
    batch.add({"x": np.zeros(3)}, 1)
    single.add({"x": np.zeros(3)}, 1)
    with pytest.raises(ValueError, match="shape") as expected:
        single.add({"x": np.zeros(2)}, 1)
    with pytest.raises(ValueError, match="shape") as caught:
        batch.add_rows(stack([{"x": np.zeros(2)}] * 2), 0, 2)
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize(
    "first, other",
    [
        (1, True),
        (1, 1.0),
        (1, 2**70),
        (1, np.int64(1)),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), torch.zeros(2)),
        (torch.zeros(2), torch.zeros(2).to_sparse()),
        (torch.zeros(1, 2, 2), tv_tensors.Image(torch.zeros(1, 2, 2))),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        ((1, 2), [1, 2]),
        ((1, 2), (1, 2, 3)),
        ("a", object()),
        (b"s", bytes(1 << 20)),
        ("s", "s" * 5000),
    ],
)
def test_a_sample_that_is_not_like_the_first_is_no_row(first, other):
    rows = make_rows(first, 2)
    with pytest.raises(NotStackableError):
        rows.put(0, other)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Color.RED,
        np.array(["a"]),
        np.array([None]),
        torch.zeros(2).to_sparse(),
        torch.Size([1]),
        OrderedDict(a=1),
        {Color.RED: 1},
        dataclasses.make_dataclass("Local", ["x"])(1),
    ],
)
def test_a_value_with_its_own_pickling_or_no_dense_row_is_sent_separately(value):
    with pytest.raises(NotStackableError):
        make_rows(value, 2)
