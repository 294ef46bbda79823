"""Values are equal exactly if their fingerprints are; what cannot be compared says so."""

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import pathlib
import pickle
import random
import re
import socket
import threading
import types
from datetime import date, timedelta
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.fingerprint import compute_fingerprint, describe_fingerprint


def digest(value):
    return compute_fingerprint(value).digest


def lines(value):
    return describe_fingerprint(compute_fingerprint(value), "v")


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flag(enum.IntEnum):
    ON = 1


@dataclasses.dataclass(frozen=True)
class Crop:
    size: int
    mode: str = "center"


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size):
        self.size = size


class Resize:
    def __init__(self, size):
        self.size = size
        self.lock = threading.Lock()

    def __getstate__(self):
        return {"size": self.size}


class Point(NamedTuple):
    x: int
    y: int


class Refusing:
    def __reduce_ex__(self, protocol):
        raise ValueError(f"not at {protocol}")


DISTINCT = [
    *(0, 1, 1.0, True, False, None, ..., "1", b"1", 1j, -0.0, 0.0, math.nan, math.inf, 10**5000, 10**5000 + 1),
    *("", b"", (), [], {}, set(), frozenset(), "a" * 500, "a" * 501, b"a" * 500, bytearray(b"1"), "\ud800"),
    *((1,), [1], {1}, frozenset({1}), (1.0,), [True], ["1"], [b"1"], [[1]], [(1,)], [1, [2]], [[1], 2], [[1, 2]]),
    *({"a": 1}, {"a": 1.0}, {"a": "1"}, {1: "a"}, {"b": 1}, {"a": {"a": 1}}, {"a": [1]}, [{"a": 1}], [{"a": (1,)}]),
    *({number: number for number in range(50)}, {number: number + (number == 3) for number in range(50)}),
    *(range(3), range(0, 3, 2), slice(1), slice(1, 2), Fraction(1, 3), date(2020, 1, 2), timedelta(1)),
    *(
        pathlib.PurePosixPath("a"),
        pathlib.PurePosixPath("a, b"),
        pathlib.Path("b"),
        re.compile("a"),
        re.compile("a", 2),
    ),
    *([pathlib.PurePosixPath("a, b")], [pathlib.PurePosixPath("a"), pathlib.PurePosixPath("b")]),
    *(Color.RED, Color.BLUE, Flag.ON, Crop(1), Crop(2), Crop(1, "random"), Slotted(1), Slotted(2), Point(1, 2)),
    *(Resize(1), Resize(2), collections.Counter("aab"), collections.deque([1]), collections.deque([1], 3)),
    *(collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1), collections.OrderedDict()),
    collections.defaultdict(int, a=1),
    collections.defaultdict(list, a=1),
    *(np.float32(1), np.float64(1), np.int64(1), np.datetime64("2020"), np.array(1), np.array([1]), np.array([[1]])),
    *(np.array([1.0]), np.array([1], np.float32), np.array([2]), np.array(["a"]), np.zeros(0)),
    *(np.array([1, "a"], object), np.array([(1, 2.0)], "i4,f4"), np.array([(1, 3.0)], "i4,f4"), np.dtype("f4")),
    *(torch.ones(2), torch.zeros(2), torch.ones(2, 1), torch.ones(2, dtype=torch.bfloat16), torch.tensor(1.0)),
    *(torch.nn.Parameter(torch.ones(2)), torch.float32, torch.Size([1])),
    *(int, str, Color, Crop, math, re, len, max, "a".join, "b".join, Crop(1).__eq__, Crop(2).__eq__),
    *(random.Random(), np.random.default_rng(), torch.Generator()),
]


def test_distinct_values_have_distinct_fingerprints_and_lines():
    assert len(DISTINCT) > 120
    fingerprints = [(digest(value), lines(value)) for value in DISTINCT]
    for (first, first_print), (second, second_print) in itertools.combinations(
        zip(DISTINCT, fingerprints, strict=True), 2
    ):
        assert first_print[0] != second_print[0], (first, second)
        assert first_print[1] != second_print[1], (first, second)


@pytest.mark.parametrize("value", DISTINCT, ids=lambda value: type(value).__name__)
def test_a_value_that_was_pickled_is_the_same(value):
    fingerprint = compute_fingerprint(value)
    assert fingerprint.unknown is None
    try:
        copy = pickle.loads(pickle.dumps(value))
    except TypeError:
        return  # a module
    assert digest(copy) == fingerprint.digest


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
HASHABLE = SCALARS | st.lists(SCALARS, max_size=3).map(tuple) | st.frozensets(SCALARS, max_size=3)
VALUES = st.recursive(
    SCALARS | st.frozensets(HASHABLE, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.builds(Crop, inner, inner)
    ),
)


def standardize(value):
    """Return a value that is equal exactly for equal values of equal types, at any depth."""
    kind = type(value).__name__
    if isinstance(value, float):
        return kind, "nan" if math.isnan(value) else value.hex()
    if isinstance(value, list | tuple):
        return kind, tuple(map(standardize, value))
    if isinstance(value, frozenset):
        return kind, frozenset(map(standardize, value))
    if isinstance(value, dict):
        return kind, frozenset((standardize(key), standardize(inner)) for key, inner in value.items())
    if isinstance(value, Crop):
        return kind, standardize(value.size), standardize(value.mode)
    return kind, value


def vary(value, draw):
    """Return a value that is likely similar to `value`."""
    if isinstance(value, list | tuple) and value:
        index = draw(st.integers(0, len(value) - 1))
        return type(value)([*value[:index], vary(value[index], draw), *value[index + 1 :]])
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(list(value)))
        return {**value, key: vary(value[key], draw)}
    if isinstance(value, bool | int):
        return draw(st.sampled_from([value, float(value) if abs(value) < 2**53 else 0.0, int(value), bool(value)]))
    return draw(st.just(value) | SCALARS)


@given(st.data())
def test_values_have_equal_fingerprints_exactly_if_they_are_equal(data):
    first = data.draw(VALUES)
    second = vary(first, data.draw)
    expected = standardize(first) == standardize(second)
    assert (digest(first) == digest(second)) is expected
    assert (lines(first) == lines(second)) is expected


@given(st.dictionaries(st.text(max_size=3), st.integers()), st.randoms())
def test_the_order_of_a_dict_does_not_count(value, rng):
    shuffled = list(value.items())
    rng.shuffle(shuffled)
    assert digest(value) == digest(dict(shuffled))
    assert digest([value, {}]) == digest([dict(shuffled), {}])


def test_equal_parts_may_be_one_object_or_two():
    shared = [1, (2, "x")]
    assert digest([shared, shared]) == digest([[1, (2, "x")], [1, (2, "x")]])


def test_layout_of_an_array_does_not_count():
    array = np.arange(12).reshape(3, 4)
    assert digest(array.T) == digest(np.ascontiguousarray(array.T)) == digest(np.asfortranarray(array.T))
    assert digest(array[::2]) == digest(array[::2].copy())
    assert digest(np.array([1], ">i8")) == digest(np.array([1], "<i8"))
    assert digest(torch.ones(3, 4).T) == digest(torch.ones(4, 3))


def test_objects_that_contain_themselves():
    def ring(number):
        value = [number]
        value.append({"back": value})
        return value

    assert digest(ring(1)) == digest(ring(1)) != digest(ring(2))


def test_modules_of_torch_count_with_weights_and_settings():
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    copy = pickle.loads(pickle.dumps(layer))
    assert digest(layer) == digest(copy)
    copy[1].p = 0.4
    assert digest(layer) != digest(copy)
    copy[1].p = 0.5
    with torch.no_grad():
        copy[0].weight[0, 0] += 1
    assert digest(layer) != digest(copy)


def test_the_state_of_a_random_generator_does_not_count():
    assert digest(random.Random(1)) == digest(random.Random(2))
    assert digest(np.random.default_rng()) == digest(np.random.default_rng())
    assert digest(torch.Generator()) == digest(torch.Generator().manual_seed(3))


def test_values_computed_by_a_cached_property_do_not_count():
    class Files:
        def __init__(self):
            self.root = "a"

        @functools.cached_property
        def names(self):
            return [1]

    first, second = Files(), Files()
    assert first.names
    assert digest(first) == digest(second)


@pytest.mark.parametrize(
    "make, reason",
    [
        (pathlib.Path(__file__).open, "TextIOWrapper"),
        (socket.socket, "socket"),
        (threading.Lock, "lock"),
        (lambda: (number for number in range(3)), "generator"),
        (lambda: memoryview(b"a"), "memoryview"),
        (Refusing, "Refusing object: not at 4"),
        (lambda: torch.ones(2).to_sparse(), ""),
    ],
)
def test_a_value_without_a_fingerprint_says_why(make, reason):
    value = make()
    with contextlib.closing(value) if hasattr(value, "close") else contextlib.nullcontext():
        for owner in (value, [1, value], {"a": {"b": [value]}}, lambda: value):
            assert reason in compute_fingerprint(owner).unknown.reason
            (line,) = [text for text in lines(owner).values() if text.startswith("no fingerprint: ")]
            assert reason in line


def test_too_deep_values_say_so():
    deep = [1]
    for _ in range(5000):
        deep = [deep]
    assert "nested more than" in compute_fingerprint(deep).unknown.reason


def test_a_ufunc_that_cannot_be_imported_is_unknown():
    assert compute_fingerprint(np.add).unknown is None
    assert "cannot be imported" in compute_fingerprint(np.frompyfunc(lambda x: x + 1, 1, 1)).unknown.reason


def test_unknown_parts_of_a_large_value_are_named():
    value = {f"key {number}": [number, [number]] for number in range(100)} | {"key 50": [threading.Lock()]}
    described = lines(value)
    assert len(described) < 30
    assert any("key 50" in path and "lock" in text for path, text in described.items())


def test_empty_private_attributes_have_no_line_and_others_do():
    described = [
        lines(types.SimpleNamespace(hooks={}, _hooks={})),
        lines(types.SimpleNamespace(hooks=[], _hooks={1: 2})),
    ]
    assert described[0]["v: attribute `hooks`"] == "{}"
    assert described[1]["v: attribute `hooks`"] == "[]"
    assert "v: attribute `_hooks`" not in described[0]
    assert described[1]["v: attribute `_hooks`"] == "{1: 2}"


def test_descriptions_stay_small():
    value = {f"key {number}": {"a": [number, Crop(number)]} for number in range(12)}
    assert 12 < len(lines(value)) < 30
