"""Batch with `pad`: values and masks as torch's pad_sequence makes them; what cannot be padded is refused by field."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from stagepipe.stages import Batch, make_rows

RNG = random.Random(0)


def collate(items: list[Any], **arguments: Any) -> Any:
    batch = Batch(len(items), **arguments)
    for item in items:
        batch.add(item, 1)
    [(value, samples)] = batch.flush(RNG)
    assert samples == len(items)
    return value


def sequences(lengths=(3, 1, 4), *shape: int, dtype: Any = np.int64) -> list[Any]:
    return [np.random.default_rng(length).integers(1, 9, (length, *shape)).astype(dtype) for length in lengths]


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.bool_])
def test_arrays_are_padded_as_pad_sequence_does(shape, dtype):
    arrays = sequences((3, 1, 4), *shape, dtype=dtype)
    expected = pad_sequence([torch.from_numpy(array) for array in arrays], batch_first=True)
    batch = collate(arrays, pad=0)
    assert batch.dtype == dtype
    np.testing.assert_array_equal(batch, expected.numpy())


@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16], ids=str)
def test_tensors_stay_tensors(dtype):
    tensors = [torch.from_numpy(array).to(dtype) for array in sequences()]
    batch = collate([{"x": tensor.requires_grad_(dtype.is_floating_point)} for tensor in tensors], pad={"x": -1})
    assert torch.equal(batch["x"], pad_sequence([t.detach() for t in tensors], batch_first=True, padding_value=-1))


def test_each_field_has_its_own_value_and_others_are_stacked():
    items = [{"ids": ids, "labels": ids.tolist(), "n": 7, "text": "a"} for ids in sequences()]
    batch = collate(items, pad={"ids": 0, "labels": -100})
    assert batch["ids"][1].tolist() == [*items[1]["labels"], 0, 0, 0]
    assert batch["labels"][1].tolist() == [*items[1]["labels"], -100, -100, -100]
    assert batch["n"].tolist() == [7, 7, 7]
    assert batch["text"] == ["a", "a", "a"]
    with pytest.raises(ValueError, match=r"Batch: `ids` has shape \(1,\), but \(3,\)"):
        collate(items, pad={"labels": 0})


def test_the_length_can_be_fixed_or_a_multiple():
    assert collate(sequences(), pad=0, pad_to=6).shape == (3, 6)
    assert collate(sequences(), pad=0, pad_to_multiple_of=8).shape == (3, 8)
    assert collate(sequences((8, 3)), pad=0, pad_to_multiple_of=8).shape == (2, 8)
    with pytest.raises(ValueError, match="`x` has the length 4, but `pad_to` is 3; cut it before Batch"):
        collate([{"x": array} for array in sequences()], pad=0, pad_to=3)


def test_lengths_and_masks_are_added_next_to_the_field():
    batch = collate([{"x": array, "n": 1} for array in sequences((2, 0, 3))], pad=0, lengths=True, mask=True)
    assert set(batch) == {"x", "n", "x_length", "x_mask"}
    assert (batch["x_length"].tolist(), batch["x_length"].dtype) == ([2, 0, 3], np.int64)
    assert batch["x_mask"].tolist() == [[True, True, False], [False] * 3, [True] * 3]


def test_nested_fields_are_named_by_their_path():
    batch = collate([{"a": {"b": array}} for array in sequences()], pad={"a.b": 5}, lengths=True)
    assert batch["a"]["b"][1, 1:].tolist() == [5, 5, 5]
    assert batch["a"]["b_length"].tolist() == [3, 1, 4]


def test_tuples_and_dataclasses_are_padded():
    @dataclass
    class Sample:
        x: np.ndarray

    assert collate([(array, 1) for array in sequences()], pad=0)[0].shape == (3, 4)
    assert collate([Sample(array) for array in sequences()], pad=0).x.shape == (3, 4)
    for items in ([(array, 1) for array in sequences()], sequences()):
        with pytest.raises(ValueError, match="`lengths` and `mask` add fields to a dict"):
            collate(items, pad=0, mask=True)


def test_a_shorter_last_batch_is_padded_to_its_own_longest():
    batch = Batch(3, pad=0)
    for array in sequences((9, 1, 1)):
        batch.add(array, 1)
    assert batch.flush(RNG)[0][0].shape == (3, 9)
    batch.add(sequences((2,))[0], 1)
    assert batch.finish(RNG)[0][0].shape == (1, 2)


def test_an_item_that_is_refused_leaves_the_batch_as_it_was():
    batch = Batch(2, pad=0)
    first, second = sequences((2, 3))
    batch.add({"x": first, "y": first}, 1)
    with pytest.raises(ValueError, match="`y` has dtype float64"):
        batch.add({"x": second, "y": second.astype(float)}, 1)
    batch.add({"x": first, "y": second}, 1)
    [(value, _)] = batch.flush(RNG)
    assert (value["x"].shape, value["y"].shape) == ((2, 2), (2, 3))


def test_rows_from_a_worker_get_their_mask_too():
    items = [{"x": array} for array in sequences((2, 2, 2))]
    rows = make_rows(items[0], 3)
    for row, item in enumerate(items):
        rows.put(row, item)
    batch = Batch(3, pad=0, pad_to=3, mask=True)
    assert batch.add_rows(rows, 0, 3, passes_on=True) == 3
    assert batch.is_full
    [(value, samples)] = batch.flush(RNG)
    assert (samples, value["x"].shape, value["x_mask"].tolist()) == (3, (3, 3), [[True, True, False]] * 3)
    np.testing.assert_array_equal(value["x"][:, :2], [item["x"] for item in items])


@pytest.mark.parametrize(
    "items, arguments, words",
    [
        ([{"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}], {"pad": 0}, r"`x` has shape \(1, 3\), but \(any, 2\)"),
        ([{"x": np.zeros(1)}], {"pad": {"y": 0}}, "pad names `y`, which the item does not have"),
        ([{"x": "abc"}], {"pad": {"x": 0}}, "`x` is of type str and cannot be padded"),
        ([{"x": np.zeros(1, np.uint8)}], {"pad": -1}, "`x` has the dtype uint8, which cannot hold the pad value -1"),
        ([{"x": np.zeros(1, int)}], {"pad": 0.5}, "`x` has the dtype int64, which cannot hold the pad value 0.5"),
        ([{"x": np.zeros(1), "x_mask": 1}], {"pad": 0, "mask": True}, "a field `x_mask`, which .* rename it"),
        ([], {"pad": "zero"}, "pad is 'zero'; give a number, or a number for each field"),
        ([], {"pad": 0, "pad_to": 0}, "pad_to is 0; give a whole number of at least 1"),
        ([], {"pad": 0, "pad_to": 8, "pad_to_multiple_of": 8}, "`pad_to_multiple_of` has no effect; remove one"),
        ([], {"mask": True}, "only padded fields have lengths and masks; set `pad`"),
    ],
)
def test_values_that_cannot_be_padded_are_refused(items, arguments, words):
    with pytest.raises(ValueError, match=f"Batch: .*{words}|Batch: {words}"):
        collate(items or [0], **arguments)
