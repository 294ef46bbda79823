"""`when` and `into` in processes and inline: what matches is changed, the rest passes by uncopied, in order."""

import io
import re
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from stagepipe import Pipeline, RunError, from_source
from stagepipe.report import render_report
from tests.support import routed_stages as ops
from tests.support.pipelines import outputs, pipeline, plain, stage, with_workers
from tests.support.routed_stages import ARRAY_BYTES
from tests.support.sink_output import write

OPS = "tests.support.routed_stages"
IMAGES = {"kind": "image"}


def op(name: str, label: str = "", **keys: Any) -> dict[str, Any]:
    return stage(f"{OPS}.{name}", name=label or name, **keys)


def run(config: dict[str, Any], **keys: Any) -> tuple[list[Any], Any]:
    """Return the items of an epoch and the report of the whole run."""
    with Pipeline(config, **keys) as running:
        items = [plain(item) for item in running]
    return items, running.report()


def expect_equal(config: dict[str, Any], workers: int = 2) -> list[Any]:
    """Return the items, which are the same in processes as inline."""
    items = outputs(config, inline=True)
    assert outputs(with_workers(config, workers)) == items
    return items


def test_items_that_do_not_match_pass_uncopied_and_in_order():
    config = pipeline(
        op("make"),
        op("total", when=IMAGES, workers=2),
        op("add_one_in_place", mutable=True, when={"meta.width": {"lt": 0}}),
        op("is_photo", "flagged", when={"flag": {"exists": True}, "id": {"ne": 5}}, into="photo"),
        source=30,
    )
    items, report = run(config)
    assert items == outputs(config, inline=True)
    assert [item["id"] for item in items] == list(range(30))
    assert [item["data"] for item in items if item["kind"] == "image"] == [n * ARRAY_BYTES for n in range(1, 30, 3)]
    assert {item["id"]: item["photo"] for item in items if "photo" in item} == {
        n: n % 3 == 2 for n in (0, 10, 15, 20, 25)
    }
    counts = {record.name: (record.items, record.passed_by) for record in report.stages[2:]}
    assert counts == {"total": (10, 20), "add_one_in_place": (0, 30), "flagged": (5, 25)}
    bytes_by_hop = {hop.target: (hop.bytes.copied, hop.bytes.zero_copy) for hop in report.hops[1:]}
    passed_on = (0, 20 * ARRAY_BYTES)
    assert bytes_by_hop == {
        "total": (30 * ARRAY_BYTES, 0),
        "add_one_in_place": passed_on,
        "flagged": passed_on,
        "sink": passed_on,
    }


def test_a_stage_that_changes_its_input_gets_copies_of_matching_items_only():
    config = pipeline(op("make"), op("add_one_in_place", mutable=True, when={"id": [3, 4]}), op("total"), source=8)
    items, report = run(config)
    assert [item["data"] // ARRAY_BYTES for item in items] == [0, 1, 2, 4, 5, 5, 6, 7]
    assert report.hops[2].bytes.copied == 2 * ARRAY_BYTES
    assert report.hops[2].bytes.zero_copy == 6 * ARRAY_BYTES


def test_fused_stages_and_generators():
    config = pipeline(
        op("small"),
        op("split", when={"kind": ["image", "photo"]}),
        op("mark", when={"part": {"exists": True, "ge": 1}}, fuse=True),
        op("split", "split2", when={"id": {"ge": 10}}, fuse=True),
        source=15,
    )
    items = expect_equal(config)
    assert [(item["id"], item.get("part"), item["log"]) for item in items if item["id"] < 10] == [
        (n, part, ["mark"] * (part == 1)) for n in range(10) for part in ([None] if n % 3 == 0 else range(n % 3))
    ]
    assert Counter(item["id"] for item in items if item["id"] >= 10) == {10: 1, 11: 4, 13: 1, 14: 4}


@pytest.mark.parametrize("order", ["source", "any"])
def test_a_batch_has_matching_items_only(order):
    config = pipeline(
        op("small"),
        op("kinds_of_batch", batch={"size": 4, "max_wait": "5ms"}, when={"kind": {"ne": "text"}}, workers=2),
        op("mark", fuse=True, when={"kind": "text"}),
        source=50,
        order=order,
    )
    items = outputs(config)
    inline = outputs(config, inline=True)
    assert [item["id"] for item in inline] == list(range(50))
    assert [item["id"] for item in (items if order == "source" else sorted(items, key=lambda i: i["id"]))] == [
        *range(50)
    ]
    for item in (*items, *inline):
        assert ("text" in item.get("kinds", [])) is False
        assert ("kinds" in item) is (item["kind"] != "text")
        assert item["log"] == (["mark"] if item["kind"] == "text" else [])
    assert next(item["kinds"] for item in inline if "kinds" in item) == ["image", "photo"], "calls have several items"


def test_random_predicates_draw_the_same_in_any_worker_and_do_not_change_the_draws_of_stages():
    coin = {"uses": f"{OPS}.Coin"}
    config = pipeline(op("small"), op("draw", when=coin, workers=2), source=60, seed=3)
    items = expect_equal(config, workers=3)
    drawn = {item["id"]: item["draws"] for item in items if "draws" in item}
    assert 5 < len(drawn) < 55
    everywhere = outputs(pipeline(op("small"), op("draw"), source=60, seed=3), inline=True)
    assert drawn == {item["id"]: item["draws"] for item in everywhere if item["id"] in drawn}
    halves = outputs(pipeline(op("small"), op("draw", when=f"{OPS}.first_half"), source=80), inline=True)
    second_draws = [item["draws"][1] for item in halves if "draws" in item]
    assert max(second_draws) > 0.6, "the stage does not draw what its predicate has drawn"


@pytest.mark.parametrize("keys", [{}, {"on_error": "skip"}, {"retries": 2}])
def test_a_predicate_that_gives_none_ends_the_run(keys):
    config = pipeline(op("small"), op("mark", when=f"{OPS}.gives_none_for_photos", **keys), source=4)
    message = "stage mark: the predicate of `when` returned None for item 2: did you forget `return`?"
    with pytest.raises(RunError, match=re.escape(message)):
        outputs(config)


def test_a_predicate_of_a_sink_that_gives_none_ends_the_run(tmp_path):
    sink = {"uses": "stagepipe.sinks.jsonl", "with": {"path": str(tmp_path / "out")}}
    config = pipeline(op("small"), source=4, sink={**sink, "when": f"{OPS}.gives_none_for_photos"})
    with pytest.raises(RunError, match=r"predicate of `when` returned None for an item: did you forget `return`\?"):
        write(config)


def test_a_predicate_decides_by_the_truth_of_its_result():
    config = pipeline(op("small"), op("mark", when=f"{OPS}.gives_length"), source=6)
    assert [item["id"] for item in outputs(config, inline=True) if item["log"]] == [0, 3]


def test_a_condition_that_matches_nothing_is_in_the_report():
    _, report = run(pipeline(op("small"), op("mark", when={"kind": "audio"}), source=6))
    note = "`mark` ran on none of 6 items: its `when` matched none"
    assert report.make_unmatched_notes() == [note]
    assert note in repr(report)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render_report(report))
    assert console.export_text().count(note) == 1
    _, report = run(pipeline(op("small"), op("mark", when={"kind": "photo"}), source=6))
    assert report.make_unmatched_notes() == []


def test_a_missing_field_ends_the_run_with_the_fix_or_is_skipped():
    config = pipeline(op("small"), op("mark", when={"flag": True}, on_error="fail"), source=4)
    with pytest.raises(
        RunError,
        match=r"stage mark, worker 0, item 0: MissingFieldError: `when`: the item has no field `flag`; it has "
        r"`id`, `kind`, `log`; where some items lack it, add the test `exists`",
    ):
        outputs(config)
    items, report = run(pipeline(op("make"), op("total", when={"flag": True}, on_error="skip"), source=11))
    assert [(item["id"], item["data"]) for item in items] == [(n, n * ARRAY_BYTES) for n in (0, 5, 10)]
    assert len(report.dead_letters) == report.stages[2].skipped == 8
    batched = pipeline(op("make"), op("mark_all", batch={"size": 2}, when={"flag": True}, on_error="skip"), source=11)
    assert (
        [item["id"] for item in outputs(batched)]
        == [item["id"] for item in outputs(batched, inline=True)]
        == [0, 5, 10]
    )


def test_a_predicate_that_fails_is_retried(tmp_path):
    config = pipeline(
        op("small"),
        op("mark", when={"uses": f"{OPS}.fails_once", "with": {"folder": str(tmp_path)}}, retries=1),
        source=8,
    )
    items, report = run(config)
    assert [item["log"] for item in items] == [["mark"] if n % 4 == 1 else [] for n in range(8)]
    assert (report.stages[2].retries, report.stages[2].items, report.stages[2].passed_by) == (4, 2, 6)


def test_a_predicate_that_kills_its_worker_loses_nothing(tmp_path):
    when = {"uses": f"{OPS}.kills_worker", "with": {"folder": str(tmp_path)}}
    config = pipeline(
        op("small"),
        op("mark", when=when, retries=3),
        op("mark", "again", fuse=True, with_={"name": "again"}, when=IMAGES),
        source=20,
    )
    items, report = run(config)
    assert [(item["id"], item["log"]) for item in items] == [
        (n, ["mark", "again"] if n % 3 == 1 else []) for n in range(20)
    ]
    assert [(restart.stage, restart.item) for restart in report.restarts] == [("mark", "7")]


def test_the_builder_routes_with_dicts_functions_and_lambdas(tmp_path):
    offset = 3
    builder = (
        from_source(range(6))
        .map(ops.small)
        .map(lambda item: item["id"] + offset, into="sum", when=lambda item: item["id"] > 1)
        .map(ops.mark, when={"kind": ["image"]})
        .drop("log", when={"kind": "text"})
        .rename({"sum": "total"}, when={"sum": {"exists": True}})
        .select("id", "kind", "total", when={"total": {"exists": True}})
    )
    with builder.open() as running:
        items = list(running)
    assert items == builder.take(6)
    assert items[:3] == [
        {"id": 0, "kind": "text"},
        {"id": 1, "kind": "image", "log": ["mark"]},
        {"id": 2, "kind": "photo", "total": 5},
    ]


def test_the_forecast_shows_the_condition():
    config = pipeline(
        op("small"), op("mark", when={"kind": "image", "id": {"ge": 0}}), op("draw", when=f"{OPS}.is_photo")
    )
    with Pipeline({**config, "source": {"uses": "stagepipe.sources.numbers", "with": {"count": 30}}}) as running:
        forecast = running.forecast()
    assert [(stage.when, stage.items_per_source_item) for stage in forecast.stages[1:]] == [
        ("", 1.0),
        ("{kind: image, id: {ge: 0}}", pytest.approx(1 / 3, abs=0.01)),
        (f"{OPS}.is_photo", pytest.approx(1 / 3, abs=0.01)),
    ]
