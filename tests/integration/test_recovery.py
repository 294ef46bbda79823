"""A killed worker is restarted, and the output is the same as without the kill: each item once, in order."""

import itertools
import signal
from collections import Counter

import pytest

from stagepipe import Pipeline, RunError
from tests.support.kills import kill
from tests.support.pipelines import batch, digest, outputs, pipeline, plain, shuffle, stage

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
GROUPS = ["source", "image", "shuffle", "same2", "batch", "last"]
FUSED = {"image": {"same"}}


def run_with_kills(config, victims, *, every=10, signal_number=signal.SIGKILL, epochs=1):
    """The output and the report of a run in which the victims are killed in turn."""
    found, victims = [], itertools.cycle(victims)
    with Pipeline(config) as running:
        for _ in range(epochs):
            for index, item in enumerate(running):
                found.append(plain(item))
                del item
                if index % every == every - 1:
                    kill(running, next(victims), signal_number)
        report = running.report()
    return found, report


def list_ids(batches):
    """The numbers of the items in all batches."""
    return [number for batch in batches for number in batch["id"][-1]]


@pytest.mark.parametrize("group", range(len(GROUPS)), ids=GROUPS)
def test_any_worker_may_be_killed(group):
    with Pipeline(CHAIN) as running:
        workers = running._run._supervisor.workers.values()
        victims = [worker.slot.process_index for worker in workers if worker.slot.worker_group == group]
    found, report = run_with_kills(CHAIN, victims, every=25)
    assert found == outputs(CHAIN, inline=True)
    assert report.restarts
    # A death is put down to the stage that ran, which may be one that is fused into the process.
    assert {restart.stage for restart in report.restarts} <= {GROUPS[group], *FUSED.get(GROUPS[group], ())}
    assert all("SIGKILL" in restart.cause for restart in report.restarts)
    assert sum(record.crashes for record in report.stages) == len(report.restarts)


@pytest.mark.parametrize("order", ["source", "any"])
def test_all_workers_may_be_killed_over_two_epochs(order):
    config = {**CHAIN, "order": order}
    found, report = run_with_kills(config, range(8), every=15, epochs=2)
    expected = outputs(config, inline=True, epochs=2)
    if order == "any":  # blocks and batches contain other items then; each item comes once an epoch all the same
        assert Counter(list_ids(found)) == Counter(list_ids(expected)) == dict.fromkeys(range(240), 2)
    else:
        assert digest(found) == digest(expected)
    assert len(report.restarts) >= 4
    assert {restart.kind for restart in report.restarts} == {"death"}


def test_generators_and_filters_survive_a_kill_between_their_outputs():
    config = pipeline(
        stage("parts", workers=2),
        batch(5),
        stage("stagepipe.stages.Unbatch"),
        stage("same", workers=2),
        source=150,
        max_restarts=50,
    )
    found, report = run_with_kills(config, range(7), every=37)
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


def test_a_worker_killed_during_start_up():
    with Pipeline(pipeline(stage("same", workers=2), source=100)) as running:
        victim = running._run._supervisor.workers[2]
        victim.send_signal(signal.SIGKILL)
        assert list(running) == list(range(100))


def test_surviving_workers_keep_their_loaded_models():
    config = pipeline(stage("tests.support.stages.Loaded", name="loaded"), stage("same"), source=200)
    with Pipeline(config) as running:
        found = []
        for index, item in enumerate(running):
            found.append(item)
            if index == 50:
                kill(running, 2)
    assert len({mark for mark, _ in found}) == 1, "the stage was built once"
    assert [number for _, number in found] == list(range(200))


def test_with_a_stateful_stage_any_crash_ends_the_run():
    config = pipeline(stage("same", stateful=True), stage("double"), source=5000)
    with pytest.raises(RunError, match="stage same has `stateful=true`"), Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for index, _ in enumerate(running):
            if index == 20:
                kill(running, 2)


def test_a_break_rebuilds_a_stateful_stage_and_the_end_of_an_epoch_does_not():
    config = pipeline(stage("tests.support.stages.Counts", name="counts", stateful=True), source=10, window=1)
    with Pipeline(config) as running:
        assert list(running) == list(range(1, 11))
        assert list(running) == list(range(11, 21)), "it keeps its state from the previous epoch"
        for item in running:
            assert item == 21
            break
        assert list(running) == list(range(1, 11)), "a break rebuilds it"


def test_more_deaths_than_max_restarts_fail_the_run_with_their_history():
    config = pipeline(stage("same", workers=2), source=100_000, max_restarts=2)
    with pytest.raises(RunError, match=r"`max_restarts` is 2:\n  after") as caught, Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for index, _ in enumerate(running):
            if index in {10, 20, 30}:
                kill(running, 1)
    assert caught.value.message.count("was killed by SIGKILL") == 4


@pytest.mark.parametrize("victim", [0, 1], ids=["source", "stage"])
def test_a_death_with_a_source_that_can_be_read_only_once_ends_the_run(victim):
    config = pipeline(
        stage("same"), source={"uses": "tests.support.stages.Once", "with": {"count": 100_000}}, max_restarts=5
    )
    with pytest.raises(RunError, match="can be read only once"), Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for index, _ in enumerate(running):
            if index == 5:
                kill(running, victim)
