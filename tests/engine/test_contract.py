"""One contract for every engine and every transport: the same items, in the same order."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from stagepipe import RunError
from tests.zoo.pipelines import STAGES, batch, outputs, pipeline, plain, shuffle, stage, with_workers
from tests.zoo.stages import Record, parts, two

ENGINES = ["inline", "auto", pytest.param("pipe", marks=pytest.mark.slow), "shared_memory"]
N = range(20)


def run(config: dict[str, Any], engine: str, *, workers: int = 2, **keys: Any) -> list[Any]:
    if engine == "inline":
        return outputs(config, inline=True, **keys)
    return outputs({**with_workers(config, workers), "transport": {"mode": engine}}, **keys)


def generated(items: Any) -> list[Any]:
    return [part for item in items for part in parts(item)]


def column(*rows: Any, dtype: str = "int64") -> Any:
    return ("array", dtype, list(rows))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def test_maps_generators_skips_and_filters_give_what_calls_give(engine):
    config = pipeline(
        stage("double"),
        stage("skip_thirds"),
        stage("stagepipe.stages.Filter", with_={"where": {"uses": f"{STAGES}.is_even"}}),
        stage("some_skipped"),
        stage("two"),
    )
    items = [2 * n for n in N if (2 * n) % 3]
    expected = [pair for n in items for part in range(4) if part != n % 4 for pair in two((n, part))]
    assert run(config, engine) == expected


def test_nested_generators_that_may_give_nothing_fused_and_not(engine):
    config = pipeline(stage("parts", fuse=True), stage("parts"), stage("two", fuse=True), stage("same"))
    assert run(config, engine, workers=3) == [pair for item in generated(generated(N)) for pair in two(item)]


def test_order_points_in_a_row_number_anew(engine):
    config = pipeline(
        batch(3),
        stage("stagepipe.stages.Unbatch"),
        batch(2, drop_last=True),
        batch(2),
        stage("stagepipe.stages.Unbatch"),
        stage("same", fuse=True),
        batch(4),
        source=23,
    )
    twos = [[at, at + 1] for at in range(0, 22, 2)]
    expected = [column(*twos[at : at + 4]) for at in range(0, len(twos), 4)]
    assert run(config, engine) == expected


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_dicts_after_a_filter(engine, drop_last):
    config = pipeline(stage("skip_thirds"), stage("to_dict"), batch(4, drop_last=drop_last))
    kept = [n for n in N if n % 3]
    groups = [kept[at : at + 4] for at in range(0, len(kept), 4)]
    groups = [group for group in groups if len(group) == 4 or not drop_last]
    found = run(config, engine)
    assert [item["id"] for item in found] == [column(*group) for group in groups]
    assert [item["name"] for item in found] == [[f"item {n}" for n in group] for group in groups]
    assert [np.array(item["x"][2]).shape for item in found] == [(len(group), 4, 3) for group in groups]


def test_a_shuffle_is_the_same_permutation_everywhere(engine):
    config = pipeline(stage("same"), shuffle(6), stage("two"), shuffle(100, name="again"), seed=3)
    found = run(config, engine, epochs=2)
    assert found == outputs(config, inline=True, epochs=2)
    assert sorted(found[:40]) == sorted(found[40:]) == sorted(pair for n in N for pair in two(n))
    assert found[:40] != found[40:], "epochs are shuffled differently"


def test_fields_conversions_fusion_and_private_copies(engine):
    config = pipeline(
        stage("to_dict"),
        stage("write_in_place", mutable=True),
        stage("halve", field="x", fuse=True, as_="numpy"),
        stage("is_writable"),
        stage("tensor_sum", field={"x": "x"}, as_="tensor"),
        source=6,
    )
    found = run(config, engine)
    assert [(item["id"], item["x"]) for item in found] == [(n, 12 * (n + 1) / 2) for n in range(6)]
    if engine != "inline":
        assert not any(item["was_writable"] for item in found), "what a stage receives is read-only"


def test_a_batch_of_a_stages_own_goes_on_item_by_item(engine):
    config = pipeline(stage("halves_of_all", batch={"size": 4, "max_wait": "20ms"}), batch(3))
    kept = [n / 2 for n in N if n % 5]
    expected = [column(*kept[at : at + 3], dtype="float64") for at in range(0, len(kept), 3)]
    assert run(config, engine) == expected


def test_dataclasses_and_tuples_survive(engine):
    records = run(pipeline(stage("to_record"), source=5), engine)
    assert records == [plain(Record(n, np.arange(n))) for n in range(5)]


@pytest.mark.parametrize("count", [0, 1])
def test_a_source_of_no_item_and_of_one(engine, count):
    config = pipeline(stage("parts"), stage("double"), batch(3), shuffle(2), source=count)
    assert run(config, engine, epochs=3) == []
    config = pipeline(stage("double"), batch(3), shuffle(2), source=count)
    assert run(config, engine, epochs=3) == [column(0)] * count * 3


@pytest.mark.parametrize("window", [1, 3])
def test_a_narrow_window_holds_nothing_up(engine, window):
    config = pipeline(stage("skip_thirds"), stage("two"), batch(5), window=window)
    kept = [pair for n in N if n % 3 for pair in two(n)]
    found = run(config, engine, workers=3)
    assert [item[1] for item in found] == [[word for _, word in kept[at : at + 5]] for at in range(0, len(kept), 5)]


def test_a_limit_ends_every_epoch(engine):
    assert run(pipeline(stage("double")), engine, limit=3, epochs=2) == [0, 2, 4] * 2


@pytest.mark.parametrize(
    "source",
    [
        {"uses": f"{STAGES}.Stream", "with": {"count": 7}},
        {"uses": f"{STAGES}.stream", "with": {"count": 7}},
        {"uses": f"{STAGES}.Epochs", "with": {"count": 7}},
    ],
    ids=["iterable", "generator function", "indexed, told of the epoch"],
)
def test_sources_of_every_form_can_be_read_again(engine, source):
    first, second = list(range(7)), list(range(7))
    if source["uses"].endswith("Epochs"):
        first, second = [(0, n) for n in first], [(1, n) for n in second]
    assert run(pipeline(stage("same"), source=source), engine, epochs=2) == first + second


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_any_order_gives_each_item_exactly_once(engine):
    config = pipeline(stage("parts"), stage("nap_at_random"), stage("two"), source=40, order="any", window=8)
    found = run(config, engine, workers=3, epochs=2)
    expected = [pair for item in generated(range(40)) for pair in two(item)]
    assert Counter(found[: len(expected)]) == Counter(found[len(expected) :]) == Counter(expected)


def test_any_order_fills_batches_with_what_comes():
    config = pipeline(stage("nap_at_random"), batch(4), stage("stagepipe.stages.Unbatch"), source=30, order="any")
    assert Counter(outputs(with_workers(config, 3))) == Counter(range(30))


@pytest.mark.parametrize(
    "mode,workers", [("auto", 1), ("auto", 2), ("pipe", 1), ("shared_memory", 1), ("shared_memory", 2)]
)
def test_large_items_through_every_transport(mode, workers):
    config = pipeline(
        stage("megabyte"), stage("touched"), stage("summed", with_={"key": "image"}), source=6, transport={"mode": mode}
    )
    found = outputs(with_workers(config, workers))
    assert [(item["id"], item["sum"]) for item in found] == [(n, (n + 1) * 1_200_000) for n in range(6)]


def test_what_a_forced_pipe_between_several_workers_does_not_take_is_refused_by_name():
    config = pipeline(stage("megabyte"), stage("touched", workers=2), source=6, transport={"mode": "pipe"})
    with pytest.raises(RunError, match=r"stage megabyte, worker 0, item 0: 1200\d+ bytes .* `transport: auto`"):
        outputs(config)
    assert outputs(with_workers(pipeline(stage("double"), source=9, transport={"mode": "pipe"}), 2)) == [
        2 * n for n in range(9)
    ]
