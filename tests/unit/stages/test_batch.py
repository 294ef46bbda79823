"""Batch gives the values of np.stack and default_collate, names the field in errors, and holds no array after flush."""

import dataclasses
import enum
import gc
import random
import sys
import weakref
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate
from torchvision import tv_tensors

from stagepipe.core import stage_locals
from stagepipe.stages import Batch, OrderPointStage

RNG = random.Random(0)
WHOLE_DTYPES = ["?", "u1", "i2", "i8", "f2", "f4", "f8", "c8", "M8[s]", ">i4", [("a", "i4"), ("b", "f8")]]


class Sample(NamedTuple):
    image: np.ndarray
    label: int


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    image: np.ndarray
    name: str = "a"

    def __post_init__(self):
        assert self.image.ndim == 1, "a class may require something of a sample that a batch does not satisfy"


class Colour(enum.IntEnum):
    RED = 1


def collate(items: list[Any], size: int | None = None) -> Any:
    batch = Batch(size or len(items))
    full = [batch.add(item, 1) for item in items]
    assert full == [number == batch.size for number in range(1, len(items) + 1)]
    [(value, samples)] = batch.flush(RNG)
    assert samples == len(items)
    return value


def test_it_is_an_order_point():
    assert isinstance(Batch(2), OrderPointStage)
    assert Batch.order_point


@pytest.mark.parametrize("dtype", WHOLE_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)], ids=str)
def test_arrays_are_stacked_bit_for_bit(dtype: Any, shape: tuple[int, ...]):
    noise = np.random.default_rng(0)
    items = [np.frombuffer(noise.bytes(24 * 16), "u1").view(dtype)[:24] for _ in range(4)]
    items = [np.resize(item, shape) for item in items]
    batch = collate(items)
    assert batch.dtype == items[0].dtype
    assert batch.tobytes() == np.stack(items).tobytes()


def test_numpy_scalars_and_arrays_without_axes_are_one_kind():
    np.testing.assert_array_equal(collate([np.float32(1), np.array(2, np.float32)]), np.array([1, 2], np.float32))


def test_views_with_any_strides_are_copied_in():
    image = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(collate([image[:, ::-1], image[:, ::-1]])[1], image[:, ::-1])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.float32, torch.bfloat16], ids=str)
def test_tensors_become_the_batch_of_default_collate(dtype: torch.dtype):
    items = [torch.arange(6).reshape(2, 3).to(dtype).T for _ in range(3)]
    batch = collate(items)
    assert type(batch) is torch.Tensor
    assert batch.dtype == dtype
    assert torch.equal(batch, default_collate(items))


def test_tv_tensors_and_tensors_with_history_become_plain_ones():
    image = tv_tensors.Image(torch.ones(3, 2, 2))
    batch = collate([{"image": image, "loss": torch.ones(1, requires_grad=True) * 2}] * 2)
    assert type(batch["image"]) is torch.Tensor
    assert not batch["loss"].requires_grad


def test_numbers_have_the_values_of_default_collate():
    items = [{"i": 2**40, "f": 0.1, "b": True}, {"i": -1, "f": 2.0, "b": False}]
    batch, expected = collate(items), default_collate(items)
    assert {name: array.dtype for name, array in batch.items()} == {"i": np.int64, "f": np.float64, "b": np.bool_}
    for name, array in batch.items():
        np.testing.assert_array_equal(array, expected[name].numpy())


@pytest.mark.parametrize(
    "value",
    ["a", b"a", None, pytest.param(Image.new("RGB", (2, 2)), id="a picture"), Colour.RED, 1j, np.str_("a")],
    ids=repr,
)
def test_other_objects_are_collected_in_a_list(value: Any):
    assert collate([{"x": value}] * 2) == {"x": [value, value]}


def test_strings_and_none_share_a_list():
    assert collate([{"x": None}, {"x": "a"}]) == {"x": [None, "a"]}


def test_object_arrays_may_differ_in_shape():
    ragged = [np.array([{"box": 1}] * n, dtype=object) for n in (1, 2)]
    batch = collate(ragged)
    assert [array.shape for array in batch] == [(1,), (2,)]


def test_arrays_of_text_become_as_wide_as_the_widest():
    np.testing.assert_array_equal(collate([np.array(["a"]), np.array(["bcd"])]), np.array([["a"], ["bcd"]]))


def test_structures_keep_their_classes():
    x = np.arange(2)
    batch = collate([OrderedDict(a=Sample(x, 1), b=[x, (Record(x), {})])] * 2)
    assert type(batch) is OrderedDict
    assert type(batch["a"]) is Sample
    assert type(batch["b"]) is list
    record, empty = batch["b"][1]
    assert type(record) is Record
    assert (record.image.shape, record.name, empty) == ((2, 2), ["a", "a"], {})


def test_a_userdict_stays_one_and_a_defaultdict_becomes_a_dict():
    assert type(collate([UserDict(a=1)] * 2)) is UserDict
    assert type(collate([defaultdict(int, a=1)] * 2)) is dict


def test_keys_may_come_in_any_order():
    np.testing.assert_array_equal(collate([{"a": 1, "b": 2}, {"b": 4, "a": 3}])["a"], [1, 3])


def test_a_partial_batch_is_cut():
    batch = collate([{"x": 1, "name": "a", "t": torch.ones(2)}] * 3, size=5)
    assert (batch["x"].shape, batch["name"], batch["t"].shape) == ((3,), ["a"] * 3, (3, 2))


def test_samples_add_up_through_batches_of_batches():
    batch = Batch(2)
    assert not batch.add(np.zeros(4), samples=4)
    assert batch.add(np.zeros(4), samples=3)
    assert batch.flush(RNG)[0][1] == 7


def test_the_end_of_an_epoch_yields_or_drops_the_rest():
    for drop_last, expected in ((False, 1), (True, 0)):
        batch = Batch(2, drop_last=drop_last)
        batch.add(1, 1)
        assert len(batch.finish(RNG)) == expected
        assert batch.finish(RNG) == []


def test_clear_discards_the_group_and_its_structure():
    batch = Batch(2)
    batch.add({"x": 1}, 1)
    batch.clear()
    batch.add("other", 1)
    assert batch.flush(RNG) == [(["other"], 1)]


@pytest.mark.parametrize(
    "first,second,words",
    [
        (
            {"image": np.zeros((2, 3))},
            {"image": np.zeros((3, 3))},
            ["`image`", "(3, 3)", "(2, 3)", "or set `pad: 0`"],
        ),
        ({"t": torch.zeros(2)}, {"t": torch.zeros(3)}, ["`t`", "(3,)", "(2,)", "resize, crop or pad before Batch"]),
        ({"x": np.zeros(2, "f4")}, {"x": np.zeros(2, "f8")}, ["`x`", "float64", "float32", "convert"]),
        ({"x": torch.zeros(2)}, {"x": torch.zeros(2, dtype=torch.int8)}, ["`x`", "torch.int8", "torch.float32"]),
        ({"x": np.zeros(2)}, {"x": torch.zeros(2)}, ["`x`", "tensor", "array"]),
        ({"x": 1}, {"x": 0.5}, ["`x`", "float", "int"]),
        ({"x": None}, {"x": 1}, ["`x`", "int", "object"]),
        ({"x": np.zeros(1)}, {"x": None}, ["`x`", "NoneType", "array"]),
        ({"x": 1}, {"y": 1}, ["the item", "['y']", "['x']"]),
        ({"m": {"x": 1}}, {"m": {"x": 1, "z": 2}}, ["`m`", "['x', 'z']"]),
        ({"m": {"x": [1, 2]}}, {"m": {"x": [1]}}, ["`m.x`", "1 entries", "pad"]),
        ({"m": [0, {"x": 1}]}, {"m": [0, {"x": "a"}]}, ["`m[1].x`", "str"]),
        (Sample(np.zeros(1), 1), Sample(np.zeros(2), 1), ["`image`", "(2,)"]),
        (Record(np.zeros(1)), Record(np.zeros(2)), ["`image`", "(2,)"]),
        ((1, 2), [1, 2], ["the item", "list", "tuple"]),
        ({"x": np.array(["a"])}, {"x": np.array(["a", "b"])}, ["`x`", "(2,)"]),
        ({"x": 1}, {"x": 2**70}, ["`x`", "int64", "str"]),
    ],
)
def test_different_items_are_refused_with_the_field(first: Any, second: Any, words: list[str]):
    batch = Batch(4)
    batch.add(first, 1)
    with pytest.raises(ValueError, match=r"^Batch: ") as caught:
        batch.add(second, 1)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_refused_item_leaves_the_batch_unchanged():
    batch = Batch(2)
    batch.add({"name": "a", "x": np.zeros(1)}, 1)
    with pytest.raises(ValueError, match="shape"):
        batch.add({"name": "refused", "x": np.ones(2)}, 1)
    assert batch.add({"name": "b", "x": np.ones(1)}, 1)
    [(value, samples)] = batch.flush(RNG)
    assert (value["name"], value["x"].tolist(), samples) == (["a", "b"], [[0], [1]], 2)


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "4"])
def test_an_invalid_size_is_refused(size: Any):
    with pytest.raises(ValueError, match="at least 1"):
        Batch(size)


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """Objects must be freed at once, by reference count: the sender checks who else holds an array."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("rows", [2, 3])
def test_the_batch_holds_no_array_after_flush(rows: int):
    array_refs: list[weakref.ref[Any]] = []

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        array = torch.empty(shape, dtype=dtype) if isinstance(dtype, torch.dtype) else np.empty(shape, dtype)
        array_refs.append(weakref.ref(array))
        return array

    stage_locals.allocate = allocate
    try:
        batch = Batch(3)
        for _ in range(rows):
            batch.add({"x": np.ones(2), "y": [torch.ones(2), 1]}, 1)
        [(value, _)] = batch.flush(RNG)
    finally:
        stage_locals.allocate = None
    assert len(array_refs) == 3
    if rows == batch.size:
        assert value["x"] is array_refs[0]()
        holders = sys.getrefcount(value["x"])  # outside the assert, which pytest rewrites to hold it too
        assert holders == 2  # the dict and the call
    del value
    assert [ref() for ref in array_refs] == [None] * 3


@pytest.mark.usefixtures("_no_collector")
def test_inputs_are_released_when_they_are_added():
    batch, item = Batch(3), np.ones(4)
    ref = weakref.ref(item)
    batch.add({"x": item}, 1)
    del item
    assert ref() is None


@pytest.mark.usefixtures("_no_collector")
def test_a_cleared_batch_frees_its_arrays():
    array_refs: list[weakref.ref[Any]] = []

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        array = np.empty(shape, dtype)
        array_refs.append(weakref.ref(array))
        return array

    stage_locals.allocate = allocate
    try:
        batch = Batch(3)
        batch.add({"x": np.ones(2)}, 1)
        batch.clear()
    finally:
        stage_locals.allocate = None
    assert array_refs[0]() is None


@pytest.mark.parametrize("fields", [{}, {"pad": 0}])
def test_a_masked_row_makes_a_masked_batch(fields: dict[str, Any]):
    masked = np.ma.masked_array([1, 2], [True, False])
    rows = [np.array([3, 4]), masked, np.array([5, 6])]
    batch = Batch(3, **fields)
    for row in rows:
        batch.add({"x": row}, 1)
    found = batch.flush(RNG)[0][0]["x"]
    assert found.tolist() == [[3, 4], [None, 2], [5, 6]]
    for row in [rows[0]] * 3:
        batch.add({"x": row}, 1)
    assert type(batch.flush(RNG)[0][0]["x"]) is np.ndarray


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_a_masked_tensor_is_refused():
    tensor = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    with pytest.raises(ValueError, match=r"Batch: `x` is a MaskedTensor, which cannot be a row of a dense one"):
        Batch(1).add({"x": tensor}, 1)
