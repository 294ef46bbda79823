"""The text of an error says what the failing item was: its fields, its path, or that it is a list."""

from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from stagepipe import RunError, from_dataset, from_source
from stagepipe.runtime.execution import errors

NUMBERS = from_source(range(3))


@dataclass
class Sample:
    image: Any
    label: int


class Point(NamedTuple):
    x: int
    y: str


class Unprintable:
    def __repr__(self) -> str:
        raise AssertionError("repr of a user's object")

    __str__ = __repr__


IMAGE = np.zeros((4, 6, 3), np.uint8)


def item_of(value: Any) -> Any:
    """A pipeline of one item, which `value` is."""
    return from_source([0]).map(lambda _: value)


def wants(item: Any) -> Any:
    return item["imge"]


def wants_attribute(item: Any) -> Any:
    return item.imge


def breaks(item: Any) -> None:
    raise ValueError("is broken")


def pads(amount: int, item: Any) -> Any:
    return item["imge"]


class Model:
    def __call__(self, item: Any) -> Any:
        return self.forward(item)

    def forward(self, item: Any) -> Any:
        return item["imge"]


def error_of(builder: Any) -> str:
    with pytest.raises(RunError) as caught:
        builder.take(1)
    return caught.value.message.partition(": ")[2]


@pytest.mark.parametrize("function", [wants, partial(pads, 3), Model(), lambda *items: items[0]["imge"]])
def test_a_key_error_shows_the_items_fields_and_types(function):
    message = error_of(item_of({"image": IMAGE, "label": 3}).map(function))
    assert message == "KeyError: 'imge'; the item is a dict with image (uint8 array 4x6x3), label (int)"


@pytest.mark.parametrize(
    "item,function,words",
    [
        (Sample(IMAGE, 1), wants_attribute, "the item is a Sample with image (uint8 array 4x6x3), label (int)"),
        (Point(1, "a"), wants_attribute, "the item is a Point with x (int), y (str)"),
        ({"a": [1, 2], "b": {}}, wants, "the item is a dict with a (list of 2), b (dict of 0)"),
        ({"a": Unprintable(), 3: None}, wants, "the item is a dict with a (Unprintable), 3 (NoneType)"),
        ({f"f{n}": n for n in range(50)}, wants, "f11 (int), 38 more"),
        ({"k" * 90: 1}, wants, f"with {'k' * 20}...{'k' * 20} (int)"),
    ],
)
def test_fields_are_bounded_and_no_code_of_the_user_runs(item, function, words):
    message = error_of(item_of(item).map(function))
    assert message.endswith(words)


def test_torch_tensors_are_described_too():
    torch = pytest.importorskip("torch")
    message = error_of(item_of({"x": torch.zeros(2, 3)}).map(wants))
    assert message.endswith("the item is a dict with x (float32 tensor 2x3)")


def test_the_first_item_of_a_list_is_described():
    message = error_of(item_of({"x": 1}).map_batches(lambda items: [wants(item) for item in items], batch_size=2))
    assert message == "KeyError: 'imge'; the first item of the list is a dict with x (int)"


def test_a_function_of_a_field_shows_the_whole_item():
    message = error_of(item_of({"meta": {}, "n": 1}).map_field("meta", wants))
    assert message == "KeyError: 'imge'; the item is a dict with meta (dict of 0), n (int)"


@pytest.mark.parametrize(
    "item,words",
    [
        ("photos/17.jpg", "; the item is photos/17.jpg"),
        (Path("photos/17.jpg"), "; the item is photos/17.jpg"),
        ({"path": "photos/17.jpg", "x": 1}, "; its `path` is photos/17.jpg"),
        ({"__key__": "0017", "name": "b"}, "; its `__key__` is 0017"),
        ({"key": 17}, "; its `key` is 17"),
        ("a" * 500, f"; the item is {'a' * 100}...{'a' * 100}"),
        ("a\nb", "; the item is a\\nb"),
        (17, ""),
        ({"path": IMAGE}, ""),
    ],
    ids=["text", "path", "field", "WebDataset", "number", "long", "lines", "an int", "no text"],
)
def test_a_path_or_key_stands_with_the_error(item, words):
    assert error_of(item_of(item).map(breaks)) == f"ValueError: is broken{words}"


def test_a_path_that_the_error_names_is_not_repeated():
    message = error_of(item_of("no/such/file.jpg").map(lambda path: Path(path).read_bytes()))
    assert message == "FileNotFoundError: [Errno 2] No such file or directory: 'no/such/file.jpg'"


def test_a_dead_letter_has_the_path():
    with item_of("photos/17.jpg").map(breaks, on_error="skip").open(inline=True) as pipeline:
        assert list(pipeline) == []
        assert pipeline.dead_letters[0].error == "ValueError: is broken; the item is photos/17.jpg"


@pytest.mark.parametrize("function", [lambda item: item + 1, wants_attribute, wants, int])
def test_a_stage_that_fails_on_a_list_is_asked_whether_its_elements_were_meant(function):
    builder = NUMBERS.map(lambda number: [number] * 2)
    if function is int:  # a target in C leaves no frame to read the item from
        assert "int()" in error_of(builder.map(function))
    else:
        words = "; the item is a list of 2: did you mean to yield its elements?"
        assert error_of(builder.map(function)).endswith(words)


def test_a_list_is_a_valid_item():
    assert NUMBERS.map(lambda number: [number] * 2).map(sum).take(3) == [0, 2, 4]


def test_indices_of_a_batch_sampler_are_not_a_list_of_items():
    class Dataset:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            raise TypeError("broken sample")

    message = error_of(from_dataset(Dataset(), batch_sampler=[[0, 1], [2, 3]]))
    assert message == "TypeError: broken sample"


def test_messages_of_this_package_have_no_fields_added():
    message = error_of(item_of({"x": 1}).map_field("y", abs))
    assert message == "MissingFieldError: the item has no field `y`; it has `x`"


def test_a_c_function_has_no_description():
    assert error_of(item_of({"x": 1}).map(itemgetter("imge"))) == "KeyError: 'imge'"


def test_an_item_without_a_name_is_not_looked_through(monkeypatch):
    looked_through = []
    monkeypatch.setattr(errors, "_read_fields", lambda item: looked_through.append(item) or {})
    assert [errors.name_item(item) for item in (7, {"id": 7, "label": 1}, [1], b"x")] == [""] * 4
    assert not looked_through  # a stage that notes names does this for each item
    monkeypatch.undo()
    assert [errors.name_item(item) for item in ({"key": 5}, {"name": "a"}, "b.jpg")] == ["5", "a", "b.jpg"]
