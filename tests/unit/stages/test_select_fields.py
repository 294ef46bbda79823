"""`Select`, `Drop` and `Rename` on dicts, dataclasses and named tuples."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from stagepipe.stages import Drop, Rename, Select


class Pair(NamedTuple):
    x: int
    y: str


@dataclass
class Sample:
    x: int
    y: str


ITEMS = [{"x": 1, "y": "a"}, Pair(1, "a"), Sample(1, "a")]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: type(item).__name__)
def test_a_dict_of_the_fields(item):
    assert list(Select(["y", "x"])(item).items()) == [("y", "a"), ("x", 1)]
    assert Drop(["x"])(item) == {"y": "a"}
    assert list(Rename({"x": "z"})(item).items()) == [("z", 1), ("y", "a")]


def test_no_fields_and_a_single_name_are_refused():
    with pytest.raises(ValueError, match=r"Select: `fields` is empty; give the name of at least one field, or remove"):
        Select([])
    with pytest.raises(TypeError, match=r"Drop: fields is 'raw', not a list of names; write \[raw\]"):
        Drop("raw")


def test_values_are_passed_on_as_they_are():
    array = np.arange(3)
    item = {"a": array, "b": 2}
    assert Select(["a"])(item)["a"] is Drop(["b"])(item)["a"] is Rename({"a": "c"})(item)["c"] is array
    assert list(item) == ["a", "b"]


def test_two_fields_swap_their_names():
    assert Rename({"x": "y", "y": "x"})({"x": 1, "y": 2}) == {"y": 1, "x": 2}


@pytest.mark.parametrize("stage", [Select(["z"]), Drop(["z"]), Rename({"z": "a"})], ids=lambda s: type(s).__name__)
def test_a_missing_field_names_those_that_there_are(stage):
    with pytest.raises(KeyError, match=rf"{type(stage).__name__}: the item has no field `z`; it has `x`, `y`"):
        stage({"x": 1, "y": 2})
    with pytest.raises(TypeError, match=r"the item is of type int; it must be a dict, dataclass or named tuple"):
        stage(3)


@pytest.mark.parametrize(
    "fields,name", [({"x": "y"}, "`y`"), ({"x": "z", "y": "z"}, "`z`, `z`")], ids=["taken", "given twice"]
)
def test_two_fields_must_not_get_the_same_name(fields, name):
    with pytest.raises(ValueError, match=rf"two fields would be called {name}"):
        Rename(fields)({"x": 1, "y": 2})


@pytest.mark.parametrize("build", [lambda: Select("x"), lambda: Rename({}), lambda: Rename(["x"])])
def test_wrong_arguments_are_refused(build):
    with pytest.raises(TypeError, match=r"(Select|Drop|Rename): fields is .*, not a (list|mapping)"):
        build()
