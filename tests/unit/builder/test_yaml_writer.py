"""The YAML of a builder loads to the builder's spec; what YAML cannot hold is refused, with the stage."""

import enum
import functools
import math
import pathlib

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepipe import UsageError, defer, from_dataset, from_source, sinks, sources
from stagepipe.config import load
from stagepipe.config.document import write_yaml
from tests.support.specs import comparable
from tests.support.stages import Echo, double, is_even, plus, two

FUNCTIONS = [double, math.sqrt, np.sqrt, str.upper, "tests.support.stages.double", functools.partial(plus, amount=3)]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["1e3", "no", "~", "${env:HOME}", "$${", "${", "0x1f", " a", "true", "null", "- a", "a: b", "#", "12:30", "|", "\n"]
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | TEXT
ARGUMENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT.filter(lambda key: key != "uses"), inner, max_size=3)
        | st.builds(lambda value: defer(Echo, key=value), inner)
    ),
    max_leaves=6,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "workers": st.integers(1, 9) | st.just("auto") | st.sampled_from(["1-4", {"min": 1, "max": 4}]),
        "timeout": st.sampled_from([0.5, "30s", 2]),
        "on_error": st.sampled_from(["fail", "skip"]),
        "retries": st.integers(0, 5),
        "env": st.dictionaries(st.sampled_from(["A", "B"]), TEXT.filter(lambda text: "\0" not in text)),
        "mutable": st.booleans(),
        "into": TEXT.filter(bool),
        "when": st.dictionaries(TEXT.filter(lambda key: key and key != "uses"), SCALARS, min_size=1, max_size=2)
        | st.just({"x": {"ge": 3, "exists": True}, "y": ["a", None]})
        | st.sampled_from([is_even, "math.isfinite"]),
        "name": st.from_regex(r"[a-z]{12}", fullmatch=True),
    },
)
STAGES = st.one_of(
    st.tuples(st.just("map"), st.tuples(st.sampled_from(FUNCTIONS)), OPTIONS),
    st.tuples(
        st.just("map"),
        st.tuples(st.builds(lambda value: defer("tests.support.stages.Echo", value=value), ARGUMENTS)),
        OPTIONS,
    ),
    st.tuples(st.just("filter"), st.tuples(st.sampled_from([is_even, "math.isfinite"])), OPTIONS),
    st.tuples(st.just("flat_map"), st.tuples(st.sampled_from([two, str.split])), OPTIONS),
    st.tuples(st.just("map_field"), st.tuples(st.sampled_from(["a", {"item": "b"}]), st.just(double)), OPTIONS),
    st.tuples(st.just("shuffle"), st.tuples(st.integers(1, 99)), st.just({})),
    st.tuples(
        st.just("batch"),
        st.tuples(st.integers(1, 99)),
        st.fixed_dictionaries({}, optional={"drop_last": st.booleans()}),
    ),
    st.tuples(st.just("unbatch"), st.just(()), st.just({})),
)
RUN_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "no", "1e3"]),
        "seed": st.integers(0, 99),
        "order": st.sampled_from(["source", "any"]),
        "memory": st.sampled_from([1 << 30, "1GiB"]),
        "max_skipped": st.sampled_from([3, "1%"]),
    },
)


@given(stages=st.lists(STAGES, max_size=4), options=RUN_OPTIONS, has_sink=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_yaml_loads_to_the_same_spec(tmp_path_factory, stages, options, has_sink):
    builder = from_source(defer(sources.numbers, 10))
    used = set()
    for method, arguments, settings_ in stages:
        if settings_.get("name") in used:
            continue
        used.add(settings_.get("name"))
        used.discard(None)
        builder = getattr(builder, method)(*arguments, **settings_)
    builder = builder.with_options(**options)
    builder = builder.sink(defer(sinks.npz, "out")) if has_sink else builder
    path = tmp_path_factory.mktemp("yaml") / "config.yaml"
    path.write_text(builder.to_yaml(), encoding="utf-8")
    assert comparable(load(path)) == comparable(load(builder))


@pytest.mark.parametrize("text", ["\x85", "a\x85b", "a\u2028", "\u2029b", "a\nb\x85"])
def test_a_line_break_of_unicode_stays_in_a_text(text):
    assert yaml.safe_load(write_yaml({text: text})) == {text: text}


def test_the_yaml_of_a_dataset_loads_to_the_same_spec(tmp_path):
    builder = from_dataset("collections.UserList", shuffle=True, workers=2).map(double)
    path = tmp_path / "config.yaml"
    path.write_text(builder.to_yaml(), encoding="utf-8")
    assert comparable(load(path)) == comparable(load(builder))


def test_a_path_is_the_public_one_and_a_constant_is_named():
    start = from_source(defer(sources.files, "a/*"))
    text = start.map(functools.partial(torch.empty, dtype=torch.float32, out=Color.RED)).to_yaml()
    assert "uses: stagepipe.sources.FilesSource" in text
    assert "uses: torch.empty" in text
    assert "{uses: torch.float32}" in text
    assert f"{{uses: {__name__}.Color.RED}}" in text


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda start: start.map(lambda item: item), r"stage `map`, \.map\(lambda\): .*cannot name a lambda; move it"),
        (lambda start: start.map(make_closure()), "stage `inner`.*cannot name `inner`"),
        (lambda start: start.map(functools.partial(plus, 1)), "write a function"),
        (lambda start: start.map(int), "write a function"),
        (lambda start: start.map(Adder(1)), "stage `Adder`.*cannot name"),
        (lambda start: start.map(defer(Echo, size=(2, 3))), r"`size`: YAML has no tuples; pass the list \[2, 3\]"),
        (lambda start: start.map(defer(Echo, kind=int)), "`kind`: a config cannot hold the class `int` itself"),
        (lambda start: start.map(defer(Echo, path=pathlib.Path("a"))), "`path`: "),
        (lambda start: start.map(defer(Echo, array=np.zeros(3))), "`array`: "),
        (lambda start: start.filter(lambda item: item), "stage `filter`.*`where`: .*a lambda"),
        (lambda start: start.sink(lambda item: None), "the sink"),
        (lambda _: from_source(range(3)), r"the source, from_source\(range\(0, 3\)\)"),
    ],
)
def test_values_that_yaml_cannot_hold_are_refused_with_the_stage(make, message):
    with pytest.raises(UsageError, match=message):
        make(from_source(defer(sources.numbers, 3))).to_yaml()


def test_a_function_of_the_running_script_is_refused():
    function = make_closure()
    function.__module__, function.__qualname__ = "__main__", "inner"
    with pytest.raises(UsageError, match="in the running script, which workers do not import"):
        from_source(defer(sources.numbers, 3)).map(function).to_yaml()


class Adder:
    def __init__(self, amount):
        self.amount = amount

    def __call__(self, item):
        return item + self.amount


def make_closure():
    def inner(item):
        return item

    return inner
