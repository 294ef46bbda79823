"""A worker that is killed, at any place, is replaced: what comes out is what would have come, once, in order."""

import itertools
import signal

import pytest

from stagepipe import Pipeline, RunError
from tests.runtime.kills import kill
from tests.zoo.pipelines import batch, digest, outputs, pipeline, plain, shuffle, stage

pytestmark = pytest.mark.timeout(90)

CHAIN = pipeline(
    stage("image", with_={"size": 200}, workers=2),
    stage("same", fuse=True),
    shuffle(7),
    stage("same", workers=2),
    batch(4),
    stage("same", name="last"),
    source=240,
    max_restarts=50,
)
PLACES = ["source", "image", "shuffle", "same2", "batch", "last"]


def disturbed(config, victims, *, every=10, number=signal.SIGKILL, epochs=1):
    """What comes out when a victim after the other is killed."""
    found, victims = [], itertools.cycle(victims)
    with Pipeline(config) as running:
        for _ in range(epochs):
            for at, item in enumerate(running):
                found.append(plain(item))
                del item
                if at % every == every - 1:
                    kill(running, next(victims), number)
        report = running.report()
    return found, report


@pytest.mark.parametrize("place", range(len(PLACES)), ids=PLACES)
def test_any_worker_may_be_killed(place):
    with Pipeline(CHAIN) as running:
        workers = running._run._supervisor.workers.values()
        victims = [worker.place.number for worker in workers if worker.place.group == place]
    found, report = disturbed(CHAIN, victims, every=25)
    assert found == outputs(CHAIN, inline=True)
    assert report.restarts
    assert {each.stage for each in report.restarts} == {PLACES[place]}
    assert all("SIGKILL" in each.cause for each in report.restarts)
    assert sum(each.crashes for each in report.stages) == len(report.restarts)


@pytest.mark.parametrize("order", ["source", "any"])
def test_all_of_them_over_two_epochs(order):
    config = {**CHAIN, "order": order}
    found, report = disturbed(config, range(8), every=15, epochs=2)
    wanted = outputs(config, inline=True, epochs=2)
    if order == "any":
        assert sum(map(len, found)) == sum(map(len, wanted))
    else:
        assert digest(found) == digest(wanted)
    assert len(report.restarts) >= 4


def test_generators_filters_and_rows_that_are_partly_out():
    config = pipeline(
        stage("parts", workers=2),
        batch(5),
        stage("stagepipe.stages.Unbatch"),
        stage("same", workers=2),
        source=150,
        max_restarts=50,
    )
    found, report = disturbed(config, range(7), every=37)
    assert found == outputs(config, inline=True)
    assert report.restarts


def test_a_worker_killed_before_the_first_item_and_between_two_epochs():
    config = pipeline(stage("same", workers=2), source=50)
    with Pipeline(config) as running:
        kill(running, 1)
        assert list(running) == list(range(50))
        kill(running, 0)
        assert list(running) == list(range(50))
        assert len(running.report().restarts) == 2


def test_one_that_is_killed_while_it_starts():
    with Pipeline(pipeline(stage("same", workers=2), source=100)) as running:
        victim = running._run._supervisor.workers[2]
        victim.signal(signal.SIGKILL)
        assert list(running) == list(range(100))


def test_the_live_ones_keep_what_they_have_loaded():
    config = pipeline(stage("tests.zoo.stages.Loaded", name="loaded"), stage("same"), source=200)
    with Pipeline(config) as running:
        found = []
        for at, item in enumerate(running):
            found.append(item)
            if at == 50:
                kill(running, 2)
    assert len({mark for mark, _ in found}) == 1, "it was built once"
    assert [number for _, number in found] == list(range(200))


def test_a_stage_that_remembers_ends_the_run_with_a_crash_anywhere():
    config = pipeline(stage("same", stateful=True), stage("double"), source=5000)
    with pytest.raises(RunError, match="stage same is `stateful: true`"), Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for at, _ in enumerate(running):
            if at == 20:
                kill(running, 2)


def test_a_stage_that_remembers_is_built_anew_by_a_break_and_not_by_an_epochs_end():
    config = pipeline(stage("tests.zoo.stages.Counts", name="counts", stateful=True), source=10, window=1)
    with Pipeline(config) as running:
        assert list(running) == list(range(1, 11))
        assert list(running) == list(range(11, 21)), "it remembers the epoch before"
        for item in running:
            assert item == 21
            break
        assert list(running) == list(range(1, 11)), "a break begins it anew"


def test_beyond_max_restarts_the_run_fails_with_the_history():
    config = pipeline(stage("same", workers=2), source=100_000, max_restarts=2)
    with pytest.raises(RunError, match=r"`max_restarts` is 2:\n  after") as caught, Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for at, _ in enumerate(running):
            if at in {10, 20, 30}:
                kill(running, 1)
    assert caught.value.message.count("was killed by SIGKILL") == 4


@pytest.mark.parametrize("victim", [0, 1], ids=["source", "stage"])
def test_a_source_that_can_be_read_only_once_says_so(victim):
    config = pipeline(
        stage("same"), source={"uses": "tests.zoo.stages.Once", "with": {"count": 100_000}}, max_restarts=5
    )
    with pytest.raises(RunError, match="can be read only once"), Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for at, _ in enumerate(running):
            if at == 5:
                kill(running, victim)
