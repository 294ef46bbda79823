"""Arguments that a class builds itself, with what it knows and by the rules of every target."""

import functools
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stagepipe.core import TargetError, build_deferred, build_target
from stagepipe.core.imports import DeferredArgument


class DefersInner:
    deferred_arguments: ClassVar = frozenset({"inner"})

    def __init__(self, inner: Any, other: Any = None) -> None:
        self.inner = inner
        self.other = other


class NeedsDataset:
    def __init__(self, dataset: Any = None, nested: Any = None) -> None:
        self.dataset = dataset
        self.nested = nested


def deferred(uses: Any, **arguments: Any) -> DeferredArgument:
    return DeferredArgument({"uses": uses, "with": arguments}, None)


def test_a_class_gets_its_deferred_arguments_as_written():
    nested = {"uses": "fractions.Fraction", "with": {"numerator": 3}}
    built = build_target(DefersInner, {"inner": nested, "other": nested}, Path("here"))
    assert built.inner == DeferredArgument(nested, Path("here"))
    assert built.other == 3


def test_available_arguments_fill_missing_parameters():
    assert build_deferred(deferred(NeedsDataset), dataset=7).dataset == 7
    assert build_deferred(deferred(NeedsDataset, dataset=8), dataset=7).dataset == 8
    assert build_deferred(deferred(NeedsDataset, nested={"uses": NeedsDataset}), dataset=7).nested.dataset == 7
    assert build_deferred(deferred("fractions.Fraction"), dataset=7) == 0


def test_a_function_is_called_and_a_nested_one_is_not():
    assert build_deferred(deferred(lambda dataset, by: dataset * by, by=3), dataset=7) == 21
    assert build_deferred(deferred(functools.partial(max, 3, 4)), dataset=7) == 4
    assert build_deferred(deferred(NeedsDataset, nested={"uses": "math.sqrt"}), dataset=7).nested(4) == 2


def test_objects_and_plain_data_are_unchanged():
    assert build_deferred([3, 1]) == [3, 1]
    assert build_deferred(DeferredArgument([3, {"uses": "fractions.Fraction"}], None)) == [3, 0]
    assert build_deferred(deferred("math.pi")) == 3.141592653589793


def test_errors_name_what_was_being_built():
    with pytest.raises(ZeroDivisionError) as caught:
        build_deferred(deferred("fractions.Fraction", numerator=1, denominator=0))
    assert caught.value.__notes__ == ["while building `fractions.Fraction`"]
    with pytest.raises(TargetError, match="is float, which takes no arguments"):
        build_deferred(deferred("math.pi", digits=3))
    with pytest.raises(TargetError, match="has no `Fractoin`"):
        build_deferred(deferred("fractions.Fractoin"))
