"""One contract for every engine and every transport: the same items, in the same order."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from stagepipe import Pipeline, RunError
from stagepipe.spec import register_engine
from tests.foreign.threads_engine import ThreadsEngine
from tests.support.pipelines import STAGES, batch, outputs, pipeline, plain, shuffle, stage, with_workers
from tests.support.stages import Record, parts, two

ENGINES = ["inline", "auto", pytest.param("pipe", marks=pytest.mark.slow), "shared_memory"]
THREADS = "threads"  # an engine that stagepipe does not know
RAY = pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")])
N = range(20)


def run(config: dict[str, Any], engine: str, *, workers: int = 2, **keys: Any) -> list[Any]:
    if engine == "inline":
        return outputs(config, inline=True, **keys)
    if engine in {"ray", "threads"}:
        return outputs({**with_workers(config, workers), "engine": engine}, **keys)
    return outputs({**with_workers(config, workers), "transport": {"mode": engine}}, **keys)


def generated(items: Any) -> list[Any]:
    return [part for item in items for part in parts(item)]


def column(*rows: Any, dtype: str = "int64") -> Any:
    return ("array", dtype, list(rows))


@pytest.fixture(autouse=True)
def threads_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test: other tests compare the schema with all engines."""
    monkeypatch.setattr("stagepipe.spec._engines", {})
    register_engine(ThreadsEngine())


@pytest.fixture(params=[*ENGINES, THREADS, RAY])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    return request.param


def test_maps_generators_skips_and_filters_yield_the_values_of_plain_calls(engine):
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


def test_an_async_function_draws_the_same_everywhere(engine):
    config = pipeline(stage("double"), stage("tests.support.async_stages.draws"), seed=3)
    results = run(config, engine, epochs=2)
    assert results == outputs(config, inline=True, epochs=2)
    assert [item for item, *_ in results] == [2 * n for n in N] * 2


def test_nested_generators_that_may_be_empty_fused_and_not(engine):
    config = pipeline(stage("parts", fuse=True), stage("parts"), stage("two", fuse=True), stage("same"))
    assert run(config, engine, workers=3) == [pair for item in generated(generated(N)) for pair in two(item)]


def test_consecutive_order_points_renumber_items(engine):
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
    twos = [[start, start + 1] for start in range(0, 22, 2)]
    expected = [column(*twos[start : start + 4]) for start in range(0, len(twos), 4)]
    assert run(config, engine) == expected


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_dicts_after_a_filter(engine, drop_last):
    config = pipeline(stage("skip_thirds"), stage("to_dict"), batch(4, drop_last=drop_last))
    kept = [n for n in N if n % 3]
    groups = [kept[start : start + 4] for start in range(0, len(kept), 4)]
    groups = [group for group in groups if len(group) == 4 or not drop_last]
    results = run(config, engine)
    assert [item["id"] for item in results] == [column(*group) for group in groups]
    assert [item["name"] for item in results] == [[f"item {n}" for n in group] for group in groups]
    assert [np.array(item["x"][2]).shape for item in results] == [(len(group), 4, 3) for group in groups]


def test_a_shuffle_is_the_same_permutation_everywhere(engine):
    config = pipeline(stage("same"), shuffle(6), stage("two"), shuffle(100, name="again"), seed=3)
    results = run(config, engine, epochs=2)
    assert results == outputs(config, inline=True, epochs=2)
    assert sorted(results[:40]) == sorted(results[40:]) == sorted(pair for n in N for pair in two(n))
    assert results[:40] != results[40:], "epochs are shuffled differently"


def test_fields_conversions_fusion_and_private_copies(engine):
    config = pipeline(
        stage("to_dict"),
        stage("write_in_place", mutable=True),
        stage("halve", field="x", fuse=True, as_="numpy"),
        stage("is_writable"),
        stage("tensor_sum", field={"x": "x"}, as_="tensor"),
        source=6,
    )
    results = run(config, engine)
    assert [(item["id"], item["x"]) for item in results] == [(n, 12 * (n + 1) / 2) for n in range(6)]
    if engine not in {"inline", "threads"}:
        assert not any(item["was_writable"] for item in results), "what a stage receives is read-only"


def test_the_batch_of_a_stage_is_sent_item_by_item(engine):
    config = pipeline(stage("halves_of_all", batch={"size": 4, "max_wait": "20ms"}), batch(3))
    kept = [n / 2 for n in N if n % 5]
    expected = [column(*kept[start : start + 3], dtype="float64") for start in range(0, len(kept), 3)]
    assert run(config, engine) == expected


def test_dataclasses_and_tuples_arrive_unchanged(engine):
    records = run(pipeline(stage("to_record"), source=5), engine)
    assert records == [plain(Record(n, np.arange(n))) for n in range(5)]


@pytest.mark.parametrize("count", [0, 1])
def test_a_source_with_no_item_and_with_one(engine, count):
    config = pipeline(stage("parts"), stage("double"), batch(3), shuffle(2), source=count)
    assert run(config, engine, epochs=3) == []
    config = pipeline(stage("double"), batch(3), shuffle(2), source=count)
    assert run(config, engine, epochs=3) == [column(0)] * count * 3


@pytest.mark.parametrize("window", [1, 3])
def test_a_narrow_window_does_not_block(engine, window):
    config = pipeline(stage("skip_thirds"), stage("two"), batch(5), window=window)
    kept = [pair for n in N if n % 3 for pair in two(n)]
    results = run(config, engine, workers=3)
    assert [item[1] for item in results] == [
        [word for _, word in kept[start : start + 5]] for start in range(0, len(kept), 5)
    ]


def test_a_limit_ends_every_epoch(engine):
    assert run(pipeline(stage("double")), engine, limit=3, epochs=2) == [0, 2, 4] * 2


@pytest.mark.parametrize(
    "source",
    [
        {"uses": f"{STAGES}.Stream", "with": {"count": 7}},
        {"uses": f"{STAGES}.stream", "with": {"count": 7}},
        {"uses": f"{STAGES}.Epochs", "with": {"count": 7}},
    ],
    ids=["iterable", "generator function", "indexed, with begin(epoch)"],
)
def test_every_kind_of_source_can_be_read_again(engine, source):
    first, second = list(range(7)), list(range(7))
    if source["uses"].endswith("Epochs"):
        first, second = [(0, n) for n in first], [(1, n) for n in second]
    assert run(pipeline(stage("same"), source=source), engine, epochs=2) == first + second


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_any_order_yields_each_item_exactly_once(engine):
    config = pipeline(stage("parts"), stage("nap_at_random"), stage("two"), source=40, order="any", window=8)
    results = run(config, engine, workers=3, epochs=2)
    expected = [pair for item in generated(range(40)) for pair in two(item)]
    assert Counter(results[: len(expected)]) == Counter(results[len(expected) :]) == Counter(expected)


def test_any_order_yields_all_other_items_before_a_first_item_that_waits_for_them(tmp_path):
    last_came = tmp_path / "9"
    slow = stage("first_waits_for", with_={"path": str(last_came)}, workers=2)
    results = []
    with Pipeline(pipeline(slow, source=10, order="any")) as running:
        for item in running:
            results.append(item)
            if item == 9:
                last_came.touch()
    assert sorted(results) == list(range(10))
    assert results[-1] == 0


def test_any_order_fills_batches_in_order_of_arrival():
    config = pipeline(stage("nap_at_random"), batch(4), stage("stagepipe.stages.Unbatch"), source=30, order="any")
    assert Counter(outputs(with_workers(config, 3))) == Counter(range(30))


@pytest.mark.parametrize(
    "mode,workers", [("auto", 1), ("auto", 2), ("pipe", 1), ("shared_memory", 1), ("shared_memory", 2)]
)
def test_large_items_through_every_transport(mode, workers):
    config = pipeline(
        stage("megabyte"), stage("touched"), stage("summed", with_={"key": "image"}), source=6, transport={"mode": mode}
    )
    results = outputs(with_workers(config, workers))
    assert [(item["id"], item["sum"]) for item in results] == [(n, (n + 1) * 1_200_000) for n in range(6)]


def test_an_item_too_large_for_a_forced_pipe_between_several_workers_is_refused():
    config = pipeline(stage("megabyte"), stage("touched", workers=2), source=6, transport={"mode": "pipe"})
    with pytest.raises(RunError, match=r"stage megabyte, worker 0, item 0: .* needs 1200\d+ bytes .* `transport=auto`"):
        outputs(config)
    assert outputs(with_workers(pipeline(stage("double"), source=9, transport={"mode": "pipe"}), 2)) == [
        2 * n for n in range(9)
    ]
