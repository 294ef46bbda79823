"""`when` and its predicates; None from a stage or a source ends the run, neither retried nor skipped."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stagepipe import SKIP, ConfigError, Pipeline, RunError, from_dataset, from_source
from stagepipe.core import TargetError
from stagepipe.runtime.execution.stage import build_predicate
from stagepipe.spec import Target
from stagepipe.stages import Fetch
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
def test_a_predicate_on_incomparable_values_is_an_error(tests, message):
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
    with pytest.raises(TargetError, match=r"`tests.support.routed_stages.ARRAY_BYTES` creates an object of type int"):
        build_predicate(Target("tests.support.routed_stages.ARRAY_BYTES"), None)


NUMBERS = from_source(range(4))


def forgets(item: object) -> None:
    str(item)


def forgets_the_third(items: list[int]) -> list[int | None]:
    return [None if item == 2 else item for item in items]


def yields_none(item: int) -> Iterator[int | None]:
    yield item
    yield None


def yields_nothing(item: int) -> Iterator[int]:
    yield from ()


def stream() -> Iterator[int | None]:
    yield 1
    yield None


class Forgetful:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> None:
        pass


class ForgetfulStream:
    def __iter__(self) -> Iterator[None]:
        yield None


def error_of(builder: Any) -> RunError:
    with pytest.raises(RunError) as caught:
        builder.take(9)
    return caught.value


RETURNED = (
    "stage r returned None for item {}: did you forget `return`? Return stagepipe.SKIP to drop an item; "
    "set `stages.r.allow_none=true` if None is meant; a stage that only saves belongs in `sink`"
)
SOURCE_RETURNED = (
    "source returned None for item 0: did you forget `return`? Return stagepipe.SKIP to drop an item; "
    "set `source.allow_none=true` if None is meant"
)
YIELDED = "{} yielded None for item {}: yield stagepipe.SKIP to drop an item; set `{}.allow_none=true` if None is meant"


@pytest.mark.parametrize("options", [{}, {"retries": 3}, {"on_error": "skip"}], ids=str)
@pytest.mark.parametrize(
    "builder,message",
    [
        (lambda **options: NUMBERS.map(forgets, name="r", **options), RETURNED.format(0)),
        (lambda **options: NUMBERS.map_batches(forgets, batch_size=3, name="r", **options), RETURNED.format(0)),
        (
            lambda **options: NUMBERS.map_batches(forgets_the_third, batch_size=3, name="r", **options),
            RETURNED.format(2),
        ),
        (
            lambda **options: NUMBERS.flat_map(yields_none, name="r", **options),
            YIELDED.format("stage r", "0.1", "stages.r"),
        ),
        (lambda **options: from_source(Forgetful(), **options), SOURCE_RETURNED),
        (lambda **options: from_source(stream, **options), YIELDED.format("source", 1, "source")),
    ],
    ids=["map", "batch", "element", "generator", "indexed source", "stream"],
)
def test_none_ends_the_run_whatever_retries_and_on_error_say(builder, message, options):
    error = error_of(builder(**options))
    assert error.message == message
    assert error.stage in {"r", "source"}
    assert error.trace == ""


def test_a_batch_that_fails_is_not_tried_item_by_item_when_one_of_them_gives_none():
    def fails_together(items: list[int]) -> list[None]:
        if len(items) > 1:
            raise ValueError("too many")
        return [None]

    builder = NUMBERS.map_batches(fails_together, batch_size=2, on_error="skip")
    assert "returned None for item 0" in error_of(builder).message


@pytest.mark.parametrize(
    "config",
    [{"source": {"uses": range(3)}, "stages": [{"name": "r", "uses": forgets}]}, NUMBERS.map(forgets, name="r")],
    ids=["dict", "builder"],
)
def test_the_advice_is_an_override_that_works_however_the_pipeline_was_written(config):
    with pytest.raises(RunError) as caught, Pipeline(config, inline=True) as pipeline:
        list(pipeline)
    advised = re.search(r"set `(.*?)`", caught.value.message)
    with Pipeline(config, [advised[1]], inline=True) as pipeline:
        assert set(pipeline) == {None}


def test_the_message_of_a_file_is_in_yaml(tmp_path):
    (tmp_path / "my_stages.py").write_text("def forgets(item):\n    item + 1\n")
    config = tmp_path / "c.yaml"
    config.write_text(
        "source: {uses: stagepipe.sources.numbers, with: {count: 3}}\n"
        "stages: [{name: r, uses: './my_stages.py:forgets'}]\n"
    )
    with pytest.raises(RunError) as caught, Pipeline(config, inline=True) as pipeline:
        list(pipeline)
    assert caught.value.message == RETURNED.format(0).replace("allow_none=True", "allow_none: true").replace(
        ".sink(...)", "sink"
    )


@pytest.mark.parametrize(
    "builder,items",
    [
        (NUMBERS.map(forgets, allow_none=True), [None] * 4),
        (NUMBERS.map_batches(forgets_the_third, batch_size=4, allow_none=True), [0, 1, None, 3]),
        (NUMBERS.flat_map(yields_none, allow_none=True), [0, None, 1, None, 2, None, 3, None]),
        (from_source(Forgetful(), allow_none=True), [None] * 3),
        (from_source(stream, allow_none=True), [1, None]),
        (from_source([{"n": 1}]).map_field("n", forgets, allow_none=True), [{"n": None}]),
    ],
    ids=["map", "batch", "generator", "indexed source", "stream", "field"],
)
def test_none_is_an_item_with_allow_none(builder, items):
    assert builder.take(9) == items


def test_a_function_of_a_field_that_forgets_its_return_ends_the_run():
    message = error_of(from_source([{"n": 1}]).map_field("n", forgets, name="r")).message
    assert message == RETURNED.format(0)


@pytest.mark.parametrize(
    "builder,items",
    [
        (NUMBERS.flat_map(yields_nothing), []),
        (NUMBERS.map(lambda _: SKIP), []),
        (from_source([1, None]).filter(lambda item: item is not None), [1]),
        (NUMBERS.map(forgets, allow_none=True).shuffle(2), [None] * 4),
    ],
    ids=["generator of nothing", "SKIP", "None in a list", "order point"],
)
def test_intended_empty_results_are_accepted(builder, items):
    assert builder.take(9) == items


def test_a_sink_may_return_none(tmp_path):
    saved: list[int] = []
    NUMBERS.sink(saved.append).run()
    assert len(saved) == 4


@pytest.mark.parametrize("dataset", [Forgetful(), ForgetfulStream()], ids=["map-style", "iterable"])
def test_a_sample_of_a_dataset_that_is_none_is_a_mistake_of_the_source(dataset):
    assert error_of(from_dataset(dataset)).message.startswith(
        ("source returned None for item 0", "source yielded None for item 0")
    )
    assert from_dataset(dataset, allow_none=True).take(1) == [None]


def test_none_samples_go_to_the_collate_function():
    fetch = Fetch([1, None, 3], batched=True, collate_fn=lambda samples: [s for s in samples if s is not None])
    assert fetch([0, 1, 2]) == [1, 3]


def test_an_order_point_takes_no_allow_none():
    with pytest.raises(ConfigError, match="cannot have `allow_none`"):
        NUMBERS.shuffle(2, allow_none=True).open()
