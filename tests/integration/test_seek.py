"""A new iteration, an early stop and a close are seeks: they happen at once and yield the right items."""

import itertools
import random
import time
from typing import Any

import pytest

from stagepipe import Pipeline, UsageError
from tests.support.pipelines import BAD, batch, outputs, pipeline, plain, shuffle, stage, with_workers

pytestmark = pytest.mark.timeout(90)


def epochs(config: dict[str, Any], count: int) -> list[list[Any]]:
    with Pipeline(config, inline=True) as running:
        return [[plain(item) for item in running] for _ in range(count)]


MIXED = with_workers(
    pipeline(
        stage("light_draws"),
        stage("random_parts"),
        stage("nap_at_random"),
        batch(3),
        shuffle(2),
        stage("same"),
        source=24,
        seed=5,
    ),
    2,
)


def test_epochs_differ_by_their_seed_and_repeat_from_run_to_run():
    first = outputs(MIXED, epochs=3)
    assert first == list(itertools.chain(*epochs(MIXED, 3)))
    in_epochs = epochs(MIXED, 3)
    assert in_epochs[0] != in_epochs[1] != in_epochs[2]


@pytest.mark.parametrize(
    "mode", ["auto", *(pytest.param(m, marks=pytest.mark.slow) for m in ("pipe", "shared_memory"))]
)
def test_fifty_iterations_stopped_anywhere(mode):
    config = {**MIXED, "transport": {"mode": mode}}
    expected = epochs(config, 50)
    rnd = random.Random(7)
    with Pipeline(config) as running:
        epoch = -1
        for _ in range(50):
            epoch += 1
            stop = rnd.randint(0, len(expected[epoch]) + 1)
            items = [plain(item) for item in itertools.islice(running, stop)]
            if not stop:  # an iterator that was never asked for an item has started no epoch
                epoch -= 1
                continue
            assert items == expected[epoch][:stop], f"epoch {epoch}"
            if rnd.random() < 0.2:
                time.sleep(rnd.random() * 0.05)


def test_an_iteration_stopped_while_a_slow_stage_works():
    config = pipeline(stage("nap", with_={"seconds": 0.15}), stage("double"), source=50)
    with Pipeline(config) as running:
        for _ in range(5):
            assert list(itertools.islice(running, 2)) == [0, 2]


@pytest.mark.parametrize("inline", [False, True])
def test_an_iterator_is_refused_after_a_newer_one_has_started(inline):
    with Pipeline(pipeline(stage("same")), inline=inline) as running:
        first = iter(running)
        assert next(first) == 0
        second = iter(running)
        with pytest.raises(UsageError, match="a newer iteration of this pipeline has begun"):
            next(first)
        assert list(second) == list(range(20))


def test_a_closed_pipeline_refuses_to_iterate():
    with Pipeline(pipeline(stage("same"))) as running:
        items = iter(running)
        next(items)
    with pytest.raises(UsageError, match="closed"):
        iter(running)
    with pytest.raises(UsageError, match="closed"):
        next(items)
    running.close()


def test_an_exhausted_iterator_stays_exhausted():
    with Pipeline(pipeline(stage("same"), source=2)) as running:
        items = iter(running)
        assert list(items) == [0, 1]
        assert list(items) == []


@pytest.mark.parametrize("inline", [False, True])
def test_a_stream_that_can_be_read_only_once_refuses_the_second_epoch(inline):
    source = {"uses": "itertools.repeat", "with": {"object": 1, "times": 4}}
    with Pipeline(pipeline(stage("same"), source=source), inline=inline) as running:
        assert list(running) == [1, 1, 1, 1]
        with pytest.raises(Exception, match="read only once"):
            list(running)


@pytest.mark.parametrize("inline", [False, True])
def test_a_pipeline_resumes_where_its_state_was_taken(inline):
    expected = epochs(MIXED, 2)
    with Pipeline(MIXED, inline=inline) as running:
        assert running.epoch == 0
        for stop in (0, 1, 5, len(expected[0])):
            running.set_epoch(0)
            items = iter(running)
            assert [plain(item) for item in itertools.islice(items, stop)] == expected[0][:stop]
            running.load_state_dict(running.state_dict())
            assert [plain(item) for item in running] == expected[0][stop:]
            assert running.epoch == 1, "the next epoch follows an epoch that has ended"
        assert [plain(item) for item in running] == expected[1]
        assert running.state_dict()["rank0"] == '{"epoch":2,"items":0,"cursor":null}'


def test_an_error_of_a_stopped_iteration_is_ignored():
    """Errors of an older generation are ignored by design. Here item 5 fails in every epoch."""
    config = pipeline(stage(f"{BAD}.raises"), source=20, window=20)
    with Pipeline(config) as running:
        for _ in range(3):
            assert list(itertools.islice(running, 4)) == [0, 1, 2, 3]
            time.sleep(0.2)
