"""What makes a stage an order point, and what the interface gives it."""

import random

import pytest

from stagepipe.core import TargetError
from stagepipe.runtime.protocol import Cardinality, infer_cardinality
from stagepipe.stages import Batch, Filter, Shuffle, declares_order_point, require_order_point
from tests.support.order_points import Pairs, Runs, WithoutFlush


@pytest.mark.parametrize("stage,expected", [(Pairs(), True), (Runs(), True), (Filter(abs), False), (Pairs, False)])
def test_a_built_stage_whose_class_says_so_is_an_order_point(stage, expected):
    assert declares_order_point(stage) is expected


def test_no_base_class_is_needed_but_every_member_is():
    runs = Runs()
    assert require_order_point(runs) is runs
    with pytest.raises(TargetError, match=r"WithoutFlush is an order point .* without `is_permutation`, .*`clear`"):
        require_order_point(WithoutFlush())


def test_a_subclass_without_a_method_cannot_be_built():
    incomplete = type("Incomplete", (Batch,), {"flush": Batch.__mro__[1].flush})
    with pytest.raises(TypeError, match="flush"):
        incomplete(2)


@pytest.mark.parametrize("drop_last,expected", [(False, [(("c",), 1)]), (True, [])])
def test_the_last_group_is_kept_or_dropped(drop_last, expected):
    pairs = Pairs(drop_last=drop_last)
    pairs.add("c", 1)
    assert pairs.finish(random.Random(0)) == expected


@pytest.mark.parametrize(
    "stage,expected",
    [
        (Pairs(), Cardinality(items_per_output=2)),
        (Batch(4, drop_last=True), Cardinality(items_per_output=4, drop_last=True)),
        (Shuffle(9), Cardinality()),
        (Runs(), Cardinality(is_known=False)),
    ],
)
def test_the_number_of_outputs_follows_from_the_class(stage, expected):
    assert infer_cardinality(stage) == expected
