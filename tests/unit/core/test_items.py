"""Fields of dicts, dataclasses and named tuples, by name and by path."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest

from stagepipe.core import MISSING, find_field, get_field, read_fields, with_field


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Sample:
    point: Point
    label: str = "a"

    def __post_init__(self) -> None:
        assert self.label != "checked", "a copy is made without `__init__`"


SAMPLE = Sample(Point(1, 2))
ITEM = {"meta": {"width": 3, "a.b": 4}, "seg.png": 5, "sample": SAMPLE, "none": None}


@pytest.mark.parametrize(
    "path,value",
    [
        ("meta.width", 3),
        ("meta.a.b", 4),
        ("seg.png", 5),
        ("sample.point.y", 2),
        ("none", None),
        ("meta.height", MISSING),
        ("seg", MISSING),
        ("none.x", MISSING),
        ("sample.point.z", MISSING),
    ],
)
def test_a_field_by_its_path(path, value):
    assert find_field(ITEM, path) == value


def test_items_without_fields():
    assert read_fields([1]) is None
    assert read_fields((1, 2)) is None
    assert find_field(3, "x") is MISSING
    with pytest.raises(
        TypeError, match=r"the field `x` needs a dict item, but this one is of type int; remove `field`"
    ):
        get_field(3, "x")


@pytest.mark.parametrize(
    "path,message",
    [
        ("metal", "the item has no field `metal`; it has `meta`, `seg.png`, `sample`, `none`"),
        ("meta.height", "the field `meta` has no field `height`; it has `width`, `a.b`"),
        ("sample.point.z", "the field `sample.point` has no field `z`; it has `x`, `y`"),
    ],
)
def test_a_missing_field_names_those_that_there_are(path, message):
    with pytest.raises(KeyError) as error:
        get_field(ITEM, path)
    assert error.value.args == (message,)


def test_many_fields_are_not_all_listed():
    with pytest.raises(KeyError, match=r"`f19` and 5 more"):
        get_field({f"f{n}": n for n in range(25)}, "x")


@pytest.mark.parametrize(
    "item,path,changed",
    [
        ({"x": 1}, "x", {"x": 0}),
        ({"x": 1}, "y", {"x": 1, "y": 0}),
        ({"x": 1}, "x.png", {"x": 1, "x.png": 0}),
        ({"x": {"y": 1}, "x.z": 2}, "x.z", {"x": {"y": 1}, "x.z": 0}),
        ({"x": {"y": 1}}, "x.z", {"x": {"y": 1, "z": 0}}),
        (Point(1, 2), "y", Point(1, 0)),
        (SAMPLE, "point.x", Sample(Point(0, 2))),
        ({"sample": SAMPLE}, "sample.label", {"sample": Sample(Point(1, 2), 0)}),
    ],
)
def test_a_changed_field_leaves_the_item_as_it_was(item, path, changed):
    before = repr(item)
    assert with_field(item, path, 0) == changed
    assert repr(item) == before


def test_a_dataclass_is_copied_without_its_checks():
    assert with_field(SAMPLE, "label", "checked").label == "checked"


def test_a_dataclass_takes_no_new_field():
    with pytest.raises(TypeError, match=r"a Point cannot have a new field `z`; it has `x`, `y`; make a dict of it"):
        with_field(Point(1, 2), "z", 0)
    with pytest.raises(TypeError, match=r"of type int; remove `into`"):
        with_field(3, "x", 0)
