"""Targets become what a stage calls; a class may build arguments itself, with what it knows."""

import enum
import functools
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stagepipe.core import TargetError, build_deferred, build_target, import_target, is_generator, require_callable
from stagepipe.core.targets import DeferredArgument


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


def test_targets_are_built(folder):
    assert build_target("./ops.py:decode", {}, folder)(3) == (3, 1)
    assert build_target("./ops.py:decode", {"quality": 5}, folder)(3) == (3, 5)
    assert build_target("./ops.py:Resize", {"size": 2}, folder)(3) == 6
    assert build_target("./ops.py:Resize.load", {"size": 2}, folder).size == 102
    assert build_target(len)("abc") == 3
    assert build_target("http:HTTPStatus.OK") is __import__("http").HTTPStatus.OK


def test_arguments_are_built_first_at_any_depth(folder):
    inner = {"uses": "./ops.py:Resize", "with": {"size": 2, "inner": [{"a": ({"uses": "./ops.py:decode"},)}]}}
    outer = build_target("./ops.py:Resize", {"size": 1, "inner": [inner, {"plain": 1}]}, folder)
    assert outer.inner[0].inner[0]["a"][0] is import_target("./ops.py:decode", folder)
    assert outer.inner[1] == {"plain": 1}
    assert build_target("./ops.py:Resize", {"size": {"uses": "./ops.py:CONSTANT"}}, folder).size == 7


def test_invalid_targets_raise(folder):
    with pytest.raises(TargetError, match="is a module"):
        build_target("os.path")
    with pytest.raises(TargetError, match="takes no arguments"):
        build_target("./ops.py:CONSTANT", {"a": 1}, folder)
    with pytest.raises(TargetError, match="takes only `with`"):
        build_target("./ops.py:decode", {"a": {"uses": "len", "wiht": {}}}, folder)
    with pytest.raises(TypeError) as caught:
        build_target("./ops.py:Resize", {}, folder)
    assert "./ops.py:Resize" in caught.value.__notes__[0]
    with pytest.raises(TargetError, match="cannot be called with an item"):
        require_callable(build_target("./ops.py:Point", {"x": 1}, folder), "./ops.py:Point")


def test_generators_are_recognized(folder):
    halves = import_target("./ops.py:halves", folder)
    many = build_target("./ops.py:Many", {}, folder)
    assert is_generator(halves)
    assert is_generator(functools.partial(functools.partial(halves), 1))
    assert is_generator(many)
    assert not is_generator(build_target("./ops.py:Resize", {"size": 1}, folder))
    assert not is_generator(len)
    assert not is_generator(enum.Enum)


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
