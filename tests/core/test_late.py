"""Arguments that a class builds itself: with what it knows, at the first use, by the rules of every target."""

import functools
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stagepipe.core.late import build_late
from stagepipe.core.targets import Late, TargetError, build


class Keeps:
    built_late: ClassVar = frozenset({"inner"})

    def __init__(self, inner: Any, other: Any = None) -> None:
        self.inner, self.other = inner, other


class Wants:
    def __init__(self, dataset: Any = None, inside: Any = None) -> None:
        self.dataset, self.inside = dataset, inside


def late(uses: Any, **arguments: Any) -> Late:
    return Late({"uses": uses, "with": arguments}, None)


def test_a_class_gets_the_arguments_that_it_names_as_they_were_written():
    nested = {"uses": "fractions.Fraction", "with": {"numerator": 3}}
    made = build(Keeps, {"inner": nested, "other": nested}, Path("here"))
    assert made.inner == Late(nested, Path("here"))
    assert made.other == 3


def test_what_is_known_goes_where_it_is_wanted_and_not_given():
    assert build_late(late(Wants), dataset=7).dataset == 7
    assert build_late(late(Wants, dataset=8), dataset=7).dataset == 8
    assert build_late(late(Wants, inside={"uses": Wants}), dataset=7).inside.dataset == 7
    assert build_late(late("fractions.Fraction"), dataset=7) == 0


def test_a_function_is_called_and_one_inside_is_handed_over():
    assert build_late(late(lambda dataset, by: dataset * by, by=3), dataset=7) == 21
    assert build_late(late(functools.partial(max, 3, 4)), dataset=7) == 4
    assert build_late(late(Wants, inside={"uses": "math.sqrt"}), dataset=7).inside(4) == 2


def test_an_object_is_itself_and_plain_data_too():
    assert build_late([3, 1]) == [3, 1]
    assert build_late(Late([3, {"uses": "fractions.Fraction"}], None)) == [3, 0]
    assert build_late(late("math.pi")) == 3.141592653589793


def test_what_it_raises_says_what_was_being_built():
    with pytest.raises(ZeroDivisionError) as caught:
        build_late(late("fractions.Fraction", numerator=1, denominator=0))
    assert caught.value.__notes__ == ["while building `fractions.Fraction`"]
    with pytest.raises(TargetError, match="is float, which takes no arguments"):
        build_late(late("math.pi", digits=3))
    with pytest.raises(TargetError, match="has no `Fractoin`"):
        build_late(late("fractions.Fractoin"))
