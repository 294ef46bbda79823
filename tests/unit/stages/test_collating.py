"""A Loader's batch equals that of torch's default_collate, or docs/how-to/datasets.md lists the difference."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import random
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate

from stagepipe.stages import Batch
from stagepipe.torch.transfer import to_tensors
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/how-to/datasets.md").read_text()
WORDS = " ".join(PAGE.split())


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Record:
    x: int


class Colour(enum.IntEnum):
    RED = 1


TENSOR_DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "half", "bfloat16", "float", "double", "cfloat"]
ARRAY_DTYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]

EQUAL: dict[str, list[Any]] = {
    **{f"tensor {name}": [torch.ones(2).to(getattr(torch, name))] * 2 for name in TENSOR_DTYPES},
    **{f"array {dtype}": [np.ones(2, dtype), np.zeros(2, dtype)] for dtype in ARRAY_DTYPES},
    "int": [1, -2],
    "float": [1.5, float("inf")],
    "bool": [True, False],
    "str": ["a", "b"],
    "bytes": [b"a", b"b"],
    "tensor without axes": [torch.tensor(1), torch.tensor(2)],
    "tensor of four axes": [torch.rand(1, 2, 3, 4), torch.rand(1, 2, 3, 4)],
    "empty tensor": [torch.ones(0), torch.ones(0)],
    "strided tensor": [torch.arange(10)[::2], torch.arange(10)[1::2]],
    "transposed tensor": [torch.rand(3, 4).T, torch.rand(3, 4).T],
    "array without axes": [np.array(1), np.array(2)],
    "array of three axes": [np.ones((2, 3, 4), "f4"), np.zeros((2, 3, 4), "f4")],
    "strided array": [np.arange(10)[::2], np.arange(10)[1::2]],
    "array in Fortran order": [np.asfortranarray(np.arange(6).reshape(2, 3))] * 2,
    "np.float32": [np.float32(1), np.float32(2)],
    "np.int64": [np.int64(1), np.int64(2)],
    "np.bool": [np.bool_(True), np.bool_(False)],
    "np.str_": [np.str_("a"), np.str_("b")],
    "dict": [{"x": np.ones(2), "y": 1, "name": "a"}, {"x": np.zeros(2), "y": 2, "name": "b"}],
    "dict of dicts of lists": [{"a": {"b": [1, 2]}}, {"a": {"b": [3, 4]}}],
    "dict in another order": [{"a": 1, "b": 2}, {"b": 3, "a": 4}],
    "dict with keys of int": [{1: 2}, {1: 3}],
    "empty dict": [{}, {}],
    "OrderedDict": [collections.OrderedDict(a=1), collections.OrderedDict(a=2)],
    "UserDict": [collections.UserDict(a=1), collections.UserDict(a=2)],
    "namedtuple": [Point(1, 2.0), Point(3, 4.0)],
    "list": [[1, 2], [3, 4]],
    "list of lists": [[[1], [2]], [[3], [4]]],
    "list of tensors": [[torch.ones(1), torch.ones(2)], [torch.zeros(1), torch.zeros(2)]],
    "empty list": [[], []],
    "one item": [{"a": torch.ones(2)}],
}
DIFFERENT: dict[str, tuple[str, list[Any]]] = {
    "tuple": ("a tuple", [(1, torch.ones(2)), (2, torch.ones(2))]),
    "list of str": ("strings or bytes inside a list or tuple", [["a", "b"], ["c", "d"]]),
    "requires_grad": ("a tensor that requires a gradient", [torch.ones(2, requires_grad=True)] * 2),
    "channels_last": (
        "a tensor of four axes in `channels_last`",
        [torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)] * 2,
    ),
    "IntEnum": ("an enum of numbers, a range, a deque, a bytearray", [Colour.RED, Colour.RED]),
    "range": ("an enum of numbers, a range, a deque, a bytearray", [range(2), range(2)]),
    "deque": ("an enum of numbers, a range, a deque, a bytearray", [collections.deque([1])] * 2),
    "bytearray": ("an enum of numbers, a range, a deque, a bytearray", [bytearray(b"a")] * 2),
    "defaultdict": ("a defaultdict, a Counter", [collections.defaultdict(int, a=1)] * 2),
    "torch.Size": ("a `torch.Size`", [torch.Size([1, 2])] * 2),
}
REFUSED: dict[str, tuple[str, list[Any]]] = {
    "int and float": ("numbers, arrays or tensors of several types", [1, 2.0]),
    "bool and int": ("numbers, arrays or tensors of several types", [True, 2]),
    "number and scalar": ("numbers, arrays or tensors of several types", [np.float64(1), 2.0]),
    "tensor dtypes": ("numbers, arrays or tensors of several types", [torch.ones(2), torch.ones(2).double()]),
    "array dtypes": ("numbers, arrays or tensors of several types", [np.ones(2, "f4"), np.ones(2, "f8")]),
    "array and tensor": ("numbers, arrays or tensors of several types", [np.ones(2), torch.ones(2)]),
    "more keys": ("dicts with keys that the first item lacks", [{"a": 1}, {"a": 2, "b": 3}]),
    "list and tuple": ("a list among tuples, a string among numbers", [[1], (2,)]),
    "str and int": ("a list among tuples, a string among numbers", ["a", 1]),
    "meta tensor": ("a tensor on the device `meta`, a quantized tensor", [torch.ones(2, device="meta")] * 2),
}
OBJECTS = "None, complex numbers, paths, dates, PIL images, arrays of objects, any other object"
FOREIGN = "arrays with negative strides, foreign byte order, text, dates, records, long doubles"
ACCEPTED: dict[str, tuple[str, list[Any]]] = {
    "None": (OBJECTS, [None, None]),
    "complex": (OBJECTS, [1j, 2j]),
    "Path": (OBJECTS, [pathlib.Path("a")] * 2),
    "date": (OBJECTS, [dt.date(2020, 1, 1)] * 2),
    "Decimal": (OBJECTS, [decimal.Decimal(1)] * 2),
    "PIL image": (OBJECTS, [Image.new("L", (2, 2))] * 2),
    "dataclass": ("a dataclass", [Record(1), Record(2)]),
    "negative stride": (FOREIGN, [np.arange(4)[::-1]] * 2),
    "byte order": (FOREIGN, [np.ones(2, ">f4")] * 2),
    "array of text": (FOREIGN, [np.array(["a", "bc"])] * 2),
    "array of dates": (FOREIGN, [np.array(["2020-01-01"], "M8[D]")] * 2),
    "structured array": (FOREIGN, [np.zeros(2, [("a", "i4")])] * 2),
    "object array": (OBJECTS, [np.array([1, "a"], object)] * 2),
}
BOTH_REFUSE: dict[str, list[Any]] = {
    "int beyond 64 bits": [2**70, 1],
    "tensor shapes": [torch.ones(2), torch.ones(3)],
    "array shapes": [np.ones(2), np.ones(3)],
    "sparse": [torch.eye(3).to_sparse()] * 2,
    "missing key": [{"a": 1, "b": 2}, {"a": 3}],
    "list lengths": [[1], [2, 3]],
    "int and None": [1, None],
    "tensor and int": [torch.ones(()), 1],
}


def collate(items: list[Any]) -> Any:
    """Return what a Loader yields for a batch."""
    stage = Batch(len(items))
    for item in items:
        stage.add(item, 1)
    ((batch, _),) = stage.flush(random.Random(0))
    return to_tensors(batch)


def equal(left: Any, right: Any) -> bool:
    """Compare types, dtypes, layouts and values at any depth."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        features = [(t.dtype, t.shape, t.requires_grad, t.numel() == 0 or t.stride()) for t in (left, right)]
        return features[0] == features[1] and torch.equal(left, right)
    if isinstance(left, Mapping):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def rows(cases: dict[str, tuple[str, list[Any]]]) -> list[Any]:
    return [pytest.param(row, items, id=name) for name, (row, items) in cases.items()]


@pytest.mark.parametrize("items", EQUAL.values(), ids=EQUAL)
def test_a_batch_equals_the_batch_of_default_collate(items):
    assert equal(collate(items), default_collate(items))


@pytest.mark.parametrize("row, items", rows(DIFFERENT))
def test_a_different_batch_is_documented(row, items):
    assert not equal(collate(items), default_collate(items))
    assert f"\n| {row} |" in PAGE


@pytest.mark.parametrize("row, items", rows(REFUSED))
def test_values_that_only_default_collate_accepts_are_documented(row, items):
    assert default_collate(items) is not None
    with pytest.raises(ValueError, match="Batch: "):
        collate(items)
    assert f"- {row}" in WORDS


@pytest.mark.parametrize("row, items", rows(ACCEPTED))
def test_values_that_only_batch_accepts_are_documented(row, items):
    with pytest.raises((TypeError, ValueError)):
        default_collate(items)
    assert collate(items) is not None
    assert f"- {row}" in WORDS


@pytest.mark.parametrize("items", BOTH_REFUSE.values(), ids=BOTH_REFUSE)
def test_values_that_no_batch_can_hold_are_refused_by_both(items):
    with pytest.raises((TypeError, ValueError, RuntimeError, KeyError)):
        default_collate(items)
    with pytest.raises(ValueError, match="Batch: "):
        collate(items)


def test_a_nested_or_quantized_tensor_is_refused_with_the_fix():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both are deprecated, or a prototype
        values = [
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        ]
    for value in values:
        with pytest.raises(ValueError, match=r"Batch: `x` is a (nested|quantized) tensor, .*convert it before Batch"):
            collate([{"x": value}])
