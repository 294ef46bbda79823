"""`concurrency`: items in progress on threads of one worker. The output is the same as one at a time."""

import functools
import itertools
import json

import pytest

from stagepipe import ConfigError, Pipeline, RunError
from stagepipe.config import load
from tests.support.kills import kill
from tests.support.pipelines import batch, outputs, pipeline, plain, shuffle, stage

pytestmark = pytest.mark.timeout(90)
STAGES = "tests.support.concurrent_stages"


def threaded(uses, concurrency=6, *, module=STAGES, **keys):
    return stage(f"{module}.{uses}", name="work", concurrency=concurrency, **keys)


@pytest.fixture(params=[STAGES, "tests.support.async_stages"], ids=["threads", "tasks"])
def side_by_side(request):
    """Makes a stage whose items are in progress on threads, or as tasks."""
    return functools.partial(threaded, module=request.param)


def test_concurrency_limits_the_items_in_progress():
    found = outputs(pipeline(threaded("Together", 8, with_={"count": 8}), source=40))
    assert [item for item, _ in found] == list(range(40))
    assert {name for _, name in found} <= {f"work/0.{number}" for number in range(1, 9)}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_output_is_that_of_one_item_at_a_time(workers):
    work = threaded("mixed", on_error="skip", workers=workers)
    config = pipeline(work, shuffle(7), batch(1), source=150)
    assert outputs(config) == outputs(config, inline=True)


def test_parts_of_generators_keep_their_order():
    config = pipeline(threaded("some_parts"), stage("same"), source=60)
    assert outputs(config, epochs=2) == outputs(config, inline=True, epochs=2)


def test_draws_of_the_context_are_those_of_one_at_a_time():
    config = pipeline(threaded("draws"), source=100, seed=3)
    assert outputs(config, epochs=2) == outputs(config, inline=True, epochs=2)
    assert len({draw for _, draw in outputs(config)}) == 100


def test_retries_conditions_and_a_cache_work_item_by_item(tmp_path):
    keys = {"retries": 2, "when": "tests.support.stages.is_even", "cache": str(tmp_path / "kept")}
    config = pipeline(threaded("FailsTwice", **keys), source=60)
    with Pipeline(config) as running:
        assert list(running) == list(range(60))
    report = running.report()
    assert report.stages[1].retries == 20
    assert report.stages[1].passed_by == 30
    again = pipeline(threaded("FailsTwice", **{**keys, "retries": 0}), source=60)
    assert outputs(again) == list(range(60))  # all of them from the cache: none fails


def test_lent_memory_travels_without_a_copy():
    with Pipeline(pipeline(threaded("lent"), source=60)) as running:
        for number, item in enumerate(running):
            assert item["id"] == number
            assert (item["image"] == number % 250).all()
    hop = running.report().hops[1]
    assert hop.bytes.copied == 0
    assert hop.bytes.zero_copy >= 60 * 300_000


def test_a_killed_worker_loses_nothing(side_by_side):
    config = pipeline(side_by_side("mixed", on_error="skip", workers=2), source=300, max_restarts=50)
    found = []
    with Pipeline(config) as running:
        for index, item in enumerate(running):
            found.append(plain(item))
            if index % 40 == 39:
                kill(running, 1 + index // 40 % 2)
        report = running.report()
    assert found == outputs(config, inline=True)
    assert report.restarts


@pytest.mark.parametrize("how, kills", [("segfault", 1), ("kill", 3)])
def test_an_item_that_kills_its_worker_is_found_and_skipped(side_by_side, how, kills):
    keys = {} if kills == 1 else {"retries": 2}
    work = side_by_side("dies_at", with_={"bad": 21, "how": how}, on_error="skip", **keys)
    with Pipeline(pipeline(work, source=60)) as running:
        assert list(running) == [number for number in range(60) if number != 21]
        report = running.report()
    (letter,) = report.dead_letters
    assert (letter.item, letter.attempts) == ("21", kills)


def test_an_item_that_hangs_is_blamed_and_no_other():
    work = threaded("hangs_at", with_={"bad": 21}, on_error="skip", timeout="1s", retries=0)
    with Pipeline(pipeline(work, source=200)) as running:
        assert list(running) == [number for number in range(200) if number != 21]
        report = running.report()
    (letter,) = report.dead_letters
    assert (letter.item, letter.attempts) == ("21", 1)
    assert len(report.restarts) == 1


def test_an_item_that_stops_all_threads_is_found_by_trying_each_of_them():
    work = threaded("holds_the_lock_at", with_={"bad": 21}, on_error="skip", timeout="1s", retries=0)
    with Pipeline(pipeline(work, source=60)) as running:
        assert list(running) == [number for number in range(60) if number != 21]
        (letter,) = running.report().dead_letters
    assert letter.item == "21"
    assert len(running.report().restarts) == 2


def test_waiting_for_room_does_not_count_towards_the_timeout():
    config = pipeline(threaded("draws", timeout="1s"), stage("nap", with_={"seconds": 0.4}), source=8)
    with Pipeline(config) as running:
        assert len(list(running)) == 8
        assert running.report().restarts == ()


def test_an_error_names_its_item_and_ends_the_run():
    with (
        pytest.raises(RunError, match="item 4: ValueError: item 4 is bad"),
        Pipeline(pipeline(threaded("mixed"), source=100)) as running,
    ):
        list(running)


@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_a_result_that_cannot_be_pickled_is_that_items_error(on_error):
    work = stage("tests.support.bad_stages.unpicklable", name="work", concurrency=4, on_error=on_error)
    config = pipeline(work, source=30)
    if on_error == "skip":
        assert outputs(config) == [number for number in range(30) if number != 5]
    else:
        with pytest.raises(RunError, match="item 5"):
            outputs(config)


def test_a_new_epoch_begins_while_items_are_in_progress():
    config = pipeline(threaded("mixed", on_error="skip"), source=200)
    expected = outputs(config, inline=True)
    with Pipeline(config) as running:
        for _ in range(4):
            for index, item in enumerate(running):
                assert plain(item) == expected[index]
                if index == 17:
                    break
        assert [plain(item) for item in running] == expected


def test_a_run_goes_on_where_its_state_was_saved():
    config = pipeline(threaded("some_parts"), source=80)
    expected = outputs(config, inline=True)
    with Pipeline(config) as running:
        items = iter(running)
        found = [plain(next(items)) for _ in range(31)]
        state = running.state_dict()
    with Pipeline(config) as resumed:
        resumed.load_state_dict(state)
        found += [plain(item) for item in resumed]
    assert found == expected


def test_a_stage_that_forks_on_a_thread_keeps_its_items():
    assert outputs(pipeline(threaded("forks", 3), source=20)) == list(range(20))


def test_a_dataset_is_read_by_threads():
    source = {"uses": "stagepipe.sources.dataset", "with": {"dataset": f"{STAGES}.Indexed"}, "concurrency": 5}
    found = outputs(pipeline(source=source))
    assert [index for index, _ in found] == list(range(60))
    assert len({name for _, name in found}) == 5


def test_the_report_tells_how_busy_the_threads_were():
    with Pipeline(pipeline(threaded("nap", 8) | {"uses": "tests.support.stages.nap"}, source=400)) as running:
        list(running)
    work = running.report().stages[1]
    assert work.items == 400
    assert 400 * 10_000_000 / 8 <= work.busy_ns <= 1.1 * work.run_ns.mean * 400 / 8
    assert work.overhead >= 0
    assert work.starting + work.busy + work.starved + work.blocked + work.overhead == pytest.approx(1)


def test_each_thread_has_a_track_in_the_trace(tmp_path):
    config = pipeline(threaded("Together", 4, with_={"count": 4}), source=40)
    with Pipeline(config, trace=tmp_path / "trace.json") as running:
        list(running)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    calls = [event for event in events if event["name"] == "work"]
    assert len(calls) == 40
    assert {tracks[event["tid"]] for event in calls} <= {f"stagepipe work/0, thread {n}" for n in range(1, 5)}
    for tid in {event["tid"] for event in calls}:
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in calls if event["tid"] == tid)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"batch": {"size": 4}}, "a stage with `concurrency` cannot have `batch`"),
        ({"stateful": True}, "a stage with `concurrency` cannot have `stateful`"),
        ({"reseed": True}, "cannot have `reseed`: its concurrent items share the global generators"),
        ({"fuse": True}, "a fused stage cannot have `concurrency`"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_keys_that_threads_do_not_support_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        load(pipeline(stage("same", concurrency=3) | keys))


def test_no_stage_is_fused_into_threads():
    with pytest.raises(ConfigError, match="`same` has `concurrency`, so no stage is fused into it"):
        load(pipeline(stage("same", concurrency=3), stage("double", fuse=True)))


def test_ray_refuses_threads_by_name():
    with pytest.raises(ConfigError, match="with `engine: ray`, a stage cannot have `concurrency`"):
        load(pipeline(stage("same", concurrency=3), engine="ray"))
