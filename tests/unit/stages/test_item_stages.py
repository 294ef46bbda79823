"""Filter passes an item on or drops it."""

import pytest

import stagepipe
from stagepipe.core import build_target
from stagepipe.stages import Filter


def test_an_item_passes_unchanged_or_is_dropped():
    item = {"x": 1}
    assert Filter(where=lambda i: i["x"])(item) is item
    assert Filter(where=lambda i: not i["x"])(item) is stagepipe.SKIP


def test_it_is_built_from_a_nested_target():
    stage = build_target("stagepipe.stages.Filter", {"where": {"uses": "math.isfinite"}})
    assert stage(1.0) == 1.0
    assert stage(float("inf")) is stagepipe.SKIP


def test_a_where_that_is_not_callable_is_refused():
    with pytest.raises(TypeError, match=r"where is 'my_ops\.is_sharp'"):
        Filter(where="my_ops.is_sharp")  # type: ignore[arg-type]
