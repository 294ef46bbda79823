"""`when`: the tests of fields, what cannot be compared, and predicates."""

import re

import numpy as np
import pytest

from stagepipe.core import TargetError
from stagepipe.runtime.execution.routing import build_predicate
from stagepipe.spec import Target
from tests.support.routed_stages import Coin, is_photo

ITEM = {
    "kind": "image",
    "width": 64,
    "ratio": np.float32(0.5),
    "zero_d": np.array(3),
    "label": None,
    "meta": {"tags": "a"},
    "array": np.zeros((2, 3)),
}


@pytest.mark.parametrize(
    "tests,matches",
    [
        ({"kind": {"eq": "image"}}, True),
        ({"kind": {"ne": "image"}}, False),
        ({"width": {"ge": 64, "lt": 65}}, True),
        ({"width": {"gt": 64}}, False),
        ({"width": {"le": 64}}, True),
        ({"kind": {"in": ["photo", "image"]}, "width": {"gt": 100}}, False),
        ({"kind": {"in": ["photo"]}}, False),
        ({"ratio": {"eq": 0.5}, "zero_d": {"eq": 3}}, True),
        ({"label": {"eq": None}}, True),
        ({"label": {"exists": True}}, True),
        ({"meta.tags": {"eq": "a"}}, True),
        ({"meta.more": {"exists": True, "ge": 3}}, False),
        ({"meta.more": {"exists": False}}, True),
        ({"kind": {"exists": False}}, False),
        ({"kind": {"eq": 3}}, False),
    ],
)
def test_fields(tests, matches):
    assert build_predicate(tests, None)(ITEM) is matches


def test_a_missing_field_is_an_error_with_the_fix():
    with pytest.raises(KeyError) as error:
        build_predicate({"meta.more": {"ge": 3}}, None)(ITEM)
    assert error.value.args[0] == (
        "`when`: the field `meta` has no field `more`; it has `tags`; where some items lack it, add the test `exists` "
        "to `when`: {meta.more: {exists: true, ...}}"
    )
    with pytest.raises(TypeError, match=r"`when`: the field `x` needs a dict item, but this one is of type int"):
        build_predicate({"x": {"eq": 3}}, None)(3)


@pytest.mark.parametrize(
    "tests,message",
    [
        ({"kind": {"ge": 3}}, "the field `kind` is of type str, and `ge` cannot compare it with 3"),
        ({"array": {"eq": 0}}, "the field `array` is of type ndarray of shape (2, 3), and `eq` cannot compare"),
        ({"array": {"in": [0]}}, "of shape (2, 3)"),
        ({"label": {"lt": 1}}, "of type NoneType"),
    ],
)
def test_what_cannot_be_compared_is_an_error(tests, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        build_predicate(tests, None)(ITEM)


def test_predicates_by_path_as_objects_and_with_arguments():
    path = "tests.support.routed_stages.is_photo"
    for target in (Target(path), Target(is_photo)):
        predicate = build_predicate(target, None)
        assert [predicate({"kind": kind}) for kind in ("photo", "image")] == [True, False]
    coin = build_predicate(Target("tests.support.routed_stages.Coin", {"share": 0.25}), None)
    assert isinstance(coin, Coin)
    assert coin.share == 0.25


def test_a_predicate_must_be_callable():
    with pytest.raises(TargetError, match=r"`tests.support.routed_stages.ARRAY_BYTES` gives an object of type int"):
        build_predicate(Target("tests.support.routed_stages.ARRAY_BYTES"), None)
