"""Arrays become tensors over the same memory, and nothing else changes."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from stagepipe.torch.transfer import to_tensors


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Sample:
    image: Any
    name: str


DTYPES = "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128"


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_dtypes_that_torch_has_are_not_copied(dtype):
    array = np.ones((3, 2), dtype)
    tensor = to_tensors(array)
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.shape == (3, 2)
    assert tensor.data_ptr() == array.ctypes.data
    array[1, 1] = 0
    assert tensor[1, 1] == 0


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array([None, 1], object),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("x", "f4")]),
        np.zeros(2, np.longdouble),
        np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=["texts", "objects", "dates", "structured", "long double", "masked"],
)
def test_arrays_that_torch_does_not_support_stay(array):
    assert to_tensors(array) is array


def test_structure_and_python_numbers_stay():
    item = {"a": [np.zeros(1), 3], "b": (np.ones(2), "x"), "c": Pair(np.int64(4), None), "d": {"e": 1.5, "f": True}}
    converted = to_tensors(item)
    assert isinstance(converted["a"][0], torch.Tensor)
    assert converted["a"][1] == 3
    assert isinstance(converted["b"], tuple)
    assert isinstance(converted["b"][0], torch.Tensor)
    assert isinstance(converted["c"], Pair)
    assert converted["c"].left.dtype == torch.int64
    assert converted["c"].right is None
    assert (type(converted["d"]["e"]), type(converted["d"]["f"])) == (float, bool)


def test_frozen_dataclasses_and_other_mappings_keep_their_type():
    sample = to_tensors(Sample(np.zeros(2), "a"))
    assert isinstance(sample.image, torch.Tensor)
    ordered = to_tensors(OrderedDict(x=np.zeros(2)))
    assert type(ordered) is OrderedDict
    assert isinstance(ordered["x"], torch.Tensor)


def test_arrays_that_torch_cannot_wrap_are_copied():
    reversed_array = np.arange(4)[::-1]
    foreign_order = np.arange(4, dtype=">i4")
    read_only = np.arange(4)
    read_only.setflags(write=False)
    for array in (reversed_array, foreign_order, read_only):
        assert to_tensors(array).tolist() == array.tolist()
    assert to_tensors(np.asfortranarray(np.arange(6).reshape(2, 3))).stride() == (1, 2)
    assert to_tensors(np.empty((0, 3))).shape == (0, 3)
    assert to_tensors(np.array(3.0)).shape == ()


@pytest.mark.parametrize("scalar", [np.longdouble(1.5), np.clongdouble(1j), np.float16(1.5), np.uint64(2**64 - 1)])
def test_numbers_are_as_arrays_of_their_dtype(scalar):
    converted = to_tensors({"x": scalar})["x"]
    assert converted is scalar if scalar.dtype.itemsize > 8 else converted.numpy() == scalar


def test_a_field_of_records_is_copied():
    records = np.array([(1, 2.5), (2, 3.5)], [("a", "i4"), ("b", "f8")])
    assert to_tensors(records["b"]).tolist() == [2.5, 3.5]


class Span(tuple):
    __slots__ = ()

    def __new__(cls, start, stop):
        return super().__new__(cls, (start, stop))


class Pile(list):
    def __init__(self, first, second):
        super().__init__([first, second])


def test_sequences_with_another_constructor_stay_or_are_named():
    span = Span(1, "a")
    assert to_tensors(span) is span
    pile = to_tensors(Pile(np.zeros(1), "a"))
    assert isinstance(pile, Pile)
    assert isinstance(pile[0], torch.Tensor)
    with pytest.raises(TypeError, match=r"^Loader: the field `views\.left` cannot be converted to tensors: .*__new__"):
        to_tensors({"views": {"left": Span(np.zeros(1), 2)}})
