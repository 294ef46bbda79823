"""The builder makes the config that YAML makes, and refuses what cannot work with the call to write instead."""

import collections
import functools
import operator
from datetime import date
from decimal import Decimal
from fractions import Fraction

import pytest

from stagepipe import ConfigError, Pipeline, UsageError, defer, from_dataset, from_source
from stagepipe.builder import PipelineBuilder
from stagepipe.config import load
from stagepipe.stages import Batch, Filter
from tests.support.pipelines import plain
from tests.support.specs import comparable
from tests.support.stages import Echo, double, is_even, plus, to_dict, two


class Scale:
    def __init__(self, by, bias="."):
        self.by = by
        self.bias = bias

    def __call__(self, item):
        return item * self.by + self.bias


class Repeat:
    def __call__(self, item):
        yield item
        yield item


def names(builder):
    return [stage.name for stage in load(builder).stages]


def test_a_chain_makes_the_spec_of_the_same_config():
    builder = (
        from_source(range(20), retries=2)
        .map(functools.partial(plus, amount=3), workers=4, timeout="5s")
        .map(defer(Scale, 2, bias=1), fuse=True)
        .filter(is_even, on_error="skip")
        .map_field({"item": "x"}, double, as_="numpy", name="field")
        .flat_map(two)
        .map_batches(sorted, batch_size=8, max_wait=0.5)
        .shuffle(100)
        .batch(64, drop_last=True)
        .unbatch()
        .sink(print)
        .with_options(seed=17, order="any", name="first")
        .with_options(name="train", memory="1GiB")
    )
    stages = [
        {"name": "plus", "uses": plus, "with": {"amount": 3}, "workers": 4, "timeout": "5s"},
        {"name": "Scale", "uses": Scale, "with": {"by": 2, "bias": 1}, "fuse": True},
        {"name": "is_even", "uses": Filter, "with": {"where": {"uses": is_even}}, "on_error": "skip"},
        {"name": "field", "uses": double, "field": {"item": "x"}, "as": "numpy"},
        {"name": "two", "uses": two},
        {"name": "sorted", "uses": sorted, "batch": {"size": 8, "max_wait": 0.5}},
        {"name": "shuffle", "uses": "stagepipe.stages.Shuffle", "with": {"size": 100}},
        {"name": "batch", "uses": Batch, "with": {"size": 64, "drop_last": True}},
        {"name": "unbatch", "uses": "stagepipe.stages.Unbatch"},
    ]
    config = {
        "name": "train",
        "seed": 17,
        "order": "any",
        "memory": "1GiB",
        "source": {"uses": range(20), "retries": 2},
        "stages": stages,
        "sink": {"uses": print},
    }
    assert comparable(load(builder)) == comparable(load(config))


def test_a_dataset_makes_the_spec_of_the_dataset_source():
    builder = from_dataset(defer(collections.UserList, "abc"), shuffle=True, workers=3).map(double)
    config = {
        "source": {
            "uses": "stagepipe.sources.dataset",
            "with": {"dataset": {"uses": collections.UserList, "with": {"initlist": "abc"}}, "shuffle": True},
            "workers": 3,
        },
        "stages": [{"name": "double", "uses": double}],
    }
    assert comparable(load(builder)) == comparable(load(config))


def test_each_call_returns_a_new_builder():
    start = from_source(range(3))
    doubled, text = start.map(double), start.map(str)
    assert (start.take(3), doubled.take(3), text.take(3)) == ([0, 1, 2], [0, 2, 4], ["0", "1", "2"])


def test_stages_are_named_after_their_functions_and_numbered_when_repeated():
    builder = (
        from_source(range(3))
        .map(double)
        .map(lambda item: item)
        .map(lambda item: item)
        .map(double)
        .filter(lambda item: item)
        .map("tests.support.stages.double", name="mine")
        .map("./ops.py:Crop.to_source")
        .map(operator.itemgetter(0))
        .map(functools.partial(plus, amount=2))
        .map(int)
        .map("somewhere.source")
    )
    assert [call.settings["name"] for call in builder.python_calls[1:]] == [
        "double",
        "map",
        "map-2",
        "double-2",
        "filter",
        "mine",
        "to_source",
        "itemgetter",
        "plus",
        "int",
        "source-2",
    ]


@pytest.mark.parametrize(
    "function,expected",
    [
        (int, [3, 4]),
        (lambda text: text + text, ["33", "44"]),
        (defer(Scale, 2), ["33.", "44."]),
        (Scale(2), ["33.", "44."]),
        (str.isdigit, [True, True]),
        (functools.partial(int, base=16), [3, 4]),
        (functools.partial(max, "35"), ["35", "4"]),
        ("tests.support.stages.double", ["33", "44"]),
        (Fraction.from_decimal, None),
        (date.fromisoformat, None),
    ],
)
def test_anything_that_can_be_called_with_an_item_is_a_stage(function, expected):
    if expected is None:
        start = from_source(["2026-01-02"] if function == date.fromisoformat else [Decimal(1)])
        assert start.map(function).take(1) == [function(start.take(1)[0])]
    else:
        assert from_source(["3", "4"]).map(function).take(2) == expected


@pytest.mark.parametrize(
    "function", [str.split, defer(Repeat), two, "tests.support.stages.two", lambda text: [text, 1]]
)
def test_flat_map_takes_generators_and_functions_that_return_an_iterable(function):
    outputs = from_source(["a b", "c"]).flat_map(function).take(4)
    assert len(outputs) == (3 if function is str.split else 4)
    assert len(from_source(["a b", "c"]).flat_map(function).take(2)) == 2


def test_flat_map_puts_each_yielded_value_into_a_field():
    builder = from_source([{"text": "a b", "n": 1}]).flat_map(str.split, field="text")
    assert builder.take(3) == [{"text": "a", "n": 1}, {"text": "b", "n": 1}]
    assert builder.python_calls[-1].settings["field"] == "text"


def test_batch_passes_on_how_to_pad():
    builder = from_source([{"x": [1, 2]}, {"x": [3]}]).batch(2, pad={"x": 0}, pad_to=3, lengths=True)
    [batch] = builder.take(1)
    assert (batch["x"].tolist(), batch["x_length"].tolist()) == ([[1, 2, 0], [3, 0, 0]], [2, 1])
    assert builder.python_calls[-1].settings["with"] == {"size": 2, "pad": {"x": 0}, "pad_to": 3, "lengths": True}


def test_arguments_reach_the_class_as_they_were_written():
    arguments = {"size": (3, 4), "text": "${vars.x}", "keys": {"a": (1,)}, "many": list(range(60_000))}
    (stage,) = load(from_source(range(2)).map(defer(Echo, **arguments))).stages
    assert stage.target.arguments == arguments
    (made,) = (
        from_source(range(1))
        .map(defer(Echo, inner=(defer(Scale, 2), [defer(Scale, 3)], {"k": defer(Scale, 4)})))
        .take(1)
    )
    first, (second,), third = made["inner"]
    assert (first.by, second.by, third["k"].by) == (2, 3, 4)


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda start: start.map(two), r"\.map\(two\).*generator function.*use \.flat_map\(two\)"),
        (lambda start: start.map(defer(Repeat)), r"use \.flat_map\(defer\(Repeat\)\)"),
        (lambda start: start.filter(two), "generator function"),
        (lambda start: start.map(Scale), r"write \.map\(defer\(Scale, \.\.\.\)\)"),
        (lambda start: start.map(3), "expected a function, found int"),
        (lambda start: start.map(operator), "expected a function, found module"),
        (lambda start: start.filter(wait), "coroutine function"),
        (lambda start: start.sink(print).map(double), r"follows \.sink"),
        (list, r"with builder\.open\(\) as pipeline"),
        (lambda _: from_source(Scale), r"from_source\(defer\(Scale, \.\.\.\)\)"),
        (lambda _: defer(Scale, 1, 2, 3), "too many positional arguments"),
        (lambda _: defer(Scale, unknown=2), "unexpected keyword argument 'unknown'"),
        (lambda _: defer(double), r"functools\.partial\(double"),
        (lambda _: defer(list, [1]), "cannot be passed by name"),
        (lambda _: defer(range, 1), "give its arguments by name"),
    ],
)
def test_impossible_calls_are_refused_with_the_right_call(make, message):
    with pytest.raises(UsageError, match=message):
        make(from_source(range(3)))


async def wait(item):
    return item


def test_an_iterator_is_refused_as_a_source():
    with pytest.raises(ConfigError, match="pass the function that creates it"):
        from_source(iter([1])).take(1)


def test_a_pipeline_takes_a_builder_and_overrides():
    builder = from_source(range(6)).map(to_dict).batch(2)
    with Pipeline(builder, ["stages.batch.with.size=3"], inline=True) as pipeline:
        assert [plain(batch["id"]) for batch in pipeline] == [
            ("array", "int64", [0, 1, 2]),
            ("array", "int64", [3, 4, 5]),
        ]


def test_take_does_not_read_the_whole_source():
    read = []
    assert from_source(range(10_000)).map(lambda item: read.append(item) or item).take(3) == [0, 1, 2]
    assert len(read) < 10


def test_all_mistakes_of_a_chain_come_at_once_with_their_calls():
    builder = from_source(range(3)).map(double, workers=0).map(plus, timeout="soon").with_options(order="none")
    with pytest.raises(ConfigError) as caught:
        builder.open()
    assert {problem.call for problem in caught.value.problems} == {
        ".map(double, workers=0)",
        ".map(plus, timeout='soon')",
        ".with_options(order='none')",
    }
    assert isinstance(builder, PipelineBuilder)
