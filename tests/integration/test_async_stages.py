"""`async def` stages: items in progress as tasks of a worker's event loop. The output is that of one at a time.

What they share with threads is in test_concurrency.
"""

import asyncio
import re
import time

import pytest

import stagepipe
from stagepipe import ConfigError, Pipeline, RunError, UsageError
from stagepipe.config import load
from tests.support import async_stages
from tests.support.pipelines import batch, outputs, pipeline, plain, shuffle, stage

pytestmark = pytest.mark.timeout(90)
STAGES = "tests.support.async_stages"


def tasks(uses, concurrency=6, **keys):
    return stage(f"{STAGES}.{uses}", name="work", concurrency=concurrency, **keys)


def test_concurrent_items_run_on_the_loop_that_built_the_stage():
    found = outputs(pipeline(tasks("Together", 8, with_={"count": 8}), source=40))
    assert found == [(item, True) for item in range(40)]


@pytest.mark.parametrize("workers, concurrency", [(1, 1), (1, 7), (2, 5)])
def test_the_output_is_that_of_one_item_at_a_time(workers, concurrency):
    config = pipeline(tasks("mixed", concurrency, on_error="skip", workers=workers), shuffle(7), batch(1), source=150)
    assert outputs(config) == outputs(config, inline=True)


@pytest.mark.parametrize("workers, concurrency", [(1, 1), (1, 7), (2, 5)])
def test_draws_of_the_context_are_those_of_one_at_a_time(workers, concurrency):
    config = pipeline(tasks("draws", concurrency, workers=workers), source=60, seed=3)
    found = outputs(config, epochs=2)
    assert found == outputs(config, inline=True, epochs=2)
    assert [each[:2] for each in found[:60]] == [(item, (item,)) for item in range(60)]
    assert len({each[2:] for each in found}) == 120


def test_retries_conditions_and_a_cache_work_item_by_item(tmp_path):
    keys = {"retries": 2, "when": "tests.support.stages.is_even", "cache": str(tmp_path / "kept")}
    config = pipeline(tasks("FailsTwice", **keys), source=60)
    with Pipeline(config) as running:
        assert list(running) == list(range(60))
    report = running.report()
    assert report.stages[1].retries == 20
    assert report.stages[1].passed_by == 30
    again = pipeline(tasks("FailsTwice", **{**keys, "retries": 0}), source=60)
    assert outputs(again) == list(range(60))  # all of them from the cache: none fails


def test_a_field_goes_through_an_async_function():
    config = pipeline(stage("image"), tasks("doubled", field="image", into="twice"), source=20)
    assert outputs(config) == outputs(config, inline=True)
    assert "twice" in next(iter(Pipeline(config, inline=True)))


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("kind", ["Session", "PlainClose"])
def test_a_session_is_made_used_and_closed_on_the_loop(kind, inline, tmp_path):
    path = tmp_path / "log"
    config = pipeline(tasks(kind, with_={"path": str(path)}), source=40)
    assert outputs(config, inline=inline) == list(range(40))
    lines = path.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["made", "closed"]
    assert {re.sub(r"\d+", "n", line.split()[1]) for line in lines} == (
        {"MainThread.loop"} if inline else {"work/n.loop"}
    )


def test_a_close_that_fails_is_a_warning(tmp_path, caplog):
    config = pipeline(tasks("FailingClose", with_={"path": str(tmp_path / "log")}), source=5)
    assert outputs(config) == list(range(5))
    assert "stage work: its `close` failed: OSError('the connection is gone')" in caplog.text


def test_tasks_that_are_left_over_end_with_the_worker():
    began_s = time.monotonic()
    assert outputs(pipeline(tasks("starts_tasks"), source=20)) == list(range(20))
    assert time.monotonic() - began_s < 30


# ---------------------------------------------------------------------- timeouts


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("retries", [None, 2])
def test_a_task_that_takes_too_long_is_cancelled_and_tried_again(retries, inline, tmp_path):
    path = tmp_path / "calls"
    arguments = {"bad": 21, "count": 2, "path": str(path)}
    keys = {} if retries is None else {"retries": retries}
    config = pipeline(tasks("SlowAtFirst", with_=arguments, timeout="0.3s", **keys), source=60)
    with Pipeline(config, inline=inline) as running:
        assert list(running) == list(range(60))
    report = running.report()
    assert len(path.read_text().split()) == 3
    assert len(set(path.read_text().split())) == 1  # the worker has lived on
    assert report.restarts == ()
    assert report.stages[1].retries == 2


@pytest.mark.parametrize("inline", [False, True])
def test_an_item_that_never_answers_is_a_dead_letter(inline, tmp_path):
    arguments = {"bad": 21, "count": 99, "path": str(tmp_path / "calls")}
    config = pipeline(tasks("SlowAtFirst", with_=arguments, timeout="0.2s", retries=1, on_error="skip"), source=60)
    with Pipeline(config, inline=inline) as running:
        assert list(running) == [number for number in range(60) if number != 21]
        report = running.report()
    (letter,) = report.dead_letters
    assert (letter.item, letter.attempts) == ("21", 2)
    assert "exceeded its `timeout` of 200 ms" in letter.error
    assert report.restarts == ()


def test_an_item_that_never_answers_ends_the_run_by_name(tmp_path):
    arguments = {"bad": 21, "count": 99, "path": str(tmp_path / "calls")}
    config = pipeline(tasks("SlowAtFirst", with_=arguments, timeout="0.2s", retries=0), source=60)
    with pytest.raises(RunError, match=r"stage work.*item 21: .*exceeded its `timeout` of 200 ms"):
        outputs(config)


@pytest.mark.parametrize("how", ["blocks_at", "blocks_in_a_task", "holds_the_lock_at", "ignores_cancellation_at"])
def test_a_call_that_cannot_be_cancelled_is_killed_and_blamed(how):
    work = tasks(how, with_={"bad": 21}, on_error="skip", timeout="3s", retries=0)  # a busy machine stops others, too
    with Pipeline(pipeline(work, source=200)) as running:
        assert list(running) == [number for number in range(200) if number != 21]
        report = running.report()
    (letter,) = report.dead_letters
    assert (letter.item, letter.attempts) == ("21", 1)
    assert len(report.restarts) == 1


def test_a_callback_that_blocks_the_loop_ends_the_worker():
    work = tasks("blocks_in_a_callback", 1, with_={"bad": 4}, on_error="skip", timeout="0.5s", retries=0)
    with Pipeline(pipeline(work, source=8)) as running:
        assert list(running) == [number for number in range(8) if number != 4]
        assert len(running.report().restarts) == 1


@pytest.mark.slow
def test_a_long_wait_is_no_deadlock():
    with Pipeline(pipeline(tasks("nap", with_={"seconds": 45}), source=3)) as running:
        assert list(running) == [0, 1, 2]
        assert running.report().restarts == ()


def test_waiting_for_room_does_not_count_towards_the_timeout():
    config = pipeline(tasks("same", timeout="1s"), stage("nap", with_={"seconds": 0.4}), source=8)
    with Pipeline(config) as running:
        assert len(list(running)) == 8
        assert running.report().restarts == ()


@pytest.mark.parametrize("inline", [False, True])
def test_a_call_that_blocks_the_loop_is_named(inline, caplog):
    config = pipeline(tasks("blocks_at", with_={"bad": 5, "seconds": 0.8}), source=12)
    assert outputs(config, inline=inline) == list(range(12))
    (record,) = [record for record in caplog.records if "has blocked the event loop" in record.getMessage()]
    text = record.getMessage()
    assert re.search(r"stage work, item 5: .*async_stages\.py:\d+, in blocks_at, has blocked", text)
    assert "time.sleep(seconds)" in text


# ---------------------------------------------------------------------- deaths, seeks and the end


def test_an_error_names_its_item_and_ends_the_run():
    with pytest.raises(RunError, match="item 4: ValueError: item 4 is bad") as caught:
        outputs(pipeline(tasks("mixed"), source=100))
    assert "event_loop.py" not in str(caught.value)


def test_a_new_epoch_cancels_items_in_progress(tmp_path):
    path = tmp_path / "cancelled"
    config = pipeline(tasks("waits_from", with_={"first": 10, "path": str(path)}), source=40)
    with Pipeline(config) as running:
        for _ in range(3):
            found = []
            for item in running:
                found.append(item)
                if item == 9:
                    break
            assert found == list(range(10))
    assert len(path.read_bytes()) >= 3  # of each epoch, and at the end


def test_a_run_goes_on_where_its_state_was_saved():
    config = pipeline(tasks("draws"), shuffle(9), source=80)
    expected = outputs(config, inline=True)
    with Pipeline(config) as running:
        items = iter(running)
        found = [plain(next(items)) for _ in range(31)]
        state = running.state_dict()
    with Pipeline(config) as resumed:
        resumed.load_state_dict(state)
        found += [plain(item) for item in resumed]
    assert found == expected


def test_a_stage_that_forks_in_a_task_keeps_its_items():
    assert outputs(pipeline(tasks("forks", 3), source=20)) == list(range(20))


def test_the_inline_engine_runs_in_a_running_loop():
    async def run():
        return outputs(pipeline(tasks("same"), source=10), inline=True)

    assert asyncio.run(run()) == list(range(10))


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"batch": {"size": 4}}, "an `async def` stage cannot have `batch`"),
        ({"stateful": True}, "an `async def` stage cannot have `stateful`"),
        ({"reseed": True}, "cannot have `reseed`: its concurrent items share the global generators"),
        ({"fuse": True}, "an `async def` stage cannot have `fuse: true`"),
        ({"group": 2}, "a stage with `group` cannot be an `async def`"),
        ({"uses": f"{STAGES}.parts"}, "is an async generator.*return a list"),
        ({"uses": f"{STAGES}.Parts"}, "is an async generator.*return a list"),
        ({"when": f"{STAGES}.keeps"}, "`tests.support.async_stages.keeps` is an async function"),
    ],
)
def test_keys_that_tasks_do_not_support_are_refused(keys, message):
    with pytest.raises(ConfigError, match=re.compile(message, re.DOTALL)):
        load(pipeline(stage(f"{STAGES}.same", name="work") | keys))


def test_no_stage_is_fused_into_tasks():
    with pytest.raises(ConfigError, match="`work` is an `async def`, so no stage is fused into it"):
        load(pipeline(tasks("same", 1), stage("double", fuse=True)))


@pytest.mark.parametrize("section", ["source", "sink"])
def test_sources_and_sinks_are_refused(section):
    uses = f"{STAGES}.{'numbers' if section == 'source' else 'save'}"
    with pytest.raises(ConfigError, match="is an async function, which nothing awaits here"):
        load(pipeline(stage("double"), **{section: {"uses": uses}}))


def test_an_async_predicate_of_a_filter_is_refused():
    keep = stage("stagepipe.stages.Filter", with_={"where": {"uses": f"{STAGES}.keeps"}})
    with pytest.raises(RunError, match="where is the async function `keeps`"):
        outputs(pipeline(keep))


def test_a_coroutine_that_nothing_awaits_is_named():
    with pytest.raises(RunError, match="stage work returned coroutine `same`, which nothing awaits"):
        outputs(pipeline(stage(f"{STAGES}.returns_a_coroutine", name="work")))


@pytest.mark.parametrize("inline", [False, True])
def test_an_async_function_that_the_source_does_not_show_is_refused(inline):
    with pytest.raises(RunError, match="returns an async function, but its source code does not show that"):
        outputs(pipeline(stage(f"{STAGES}.hidden", name="work")), inline=inline)


# ---------------------------------------------------------------------- Python


def test_the_builder_takes_async_functions():
    built = stagepipe.from_source(range(30)).map(async_stages.same, concurrency=4)
    assert built.take(30) == list(range(30))

    async def local(item):
        await asyncio.sleep(0)
        return item + 1

    assert stagepipe.from_source(range(30)).map(local, concurrency=4).take(30) == list(range(1, 31))


@pytest.mark.parametrize("method", ["filter", "flat_map", "sink"])
def test_the_builder_refuses_them_elsewhere(method):
    with pytest.raises(UsageError, match="`keeps` is a coroutine function"):
        getattr(stagepipe.from_source(range(3)), method)(async_stages.keeps)
    with pytest.raises(UsageError, match="`parts` is an async generator"):
        stagepipe.from_source(range(3)).map(async_stages.parts)


def test_a_worker_without_an_async_stage_does_not_import_asyncio():
    work = stage("tests.support.start_stages.has_imported", name="work", with_={"name": "asyncio"}, concurrency=2)
    assert outputs(pipeline(work, source=3, start="spawn")) == [False] * 3  # a fork has what torch imports
