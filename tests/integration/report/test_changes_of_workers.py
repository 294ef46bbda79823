"""What shows a run whose numbers of workers change: live, in its report, its trace, its metrics and its log."""

import logging
from pathlib import Path

import pytest

from stagepipe.engine import LiveFigures
from stagepipe.engine.metrics import RunCollector
from stagepipe.report import LiveRun
from stagepipe.runtime import find_runs, take_run_timings
from stagepipe.runtime.supervisor import ChangeCause
from stagepipe.testing import scaling_policy
from tests.integration.test_worker_changes import ChangeablePipeline, NoDecision
from tests.support.kills import kill, until
from tests.support.pipelines import pipeline, stage
from tests.support.trace_check import check_trace, load_trace

pytestmark = pytest.mark.timeout(90)
NAPS = pipeline(stage("nap", with_={"seconds": 0.005}), source=100_000)


@pytest.fixture(autouse=True)
def _only_changes_of_the_test():
    with scaling_policy(NoDecision()):
        yield


class Watched:
    """A run that is seen from outside while its items are taken."""

    def __init__(self, running: ChangeablePipeline) -> None:
        self.running = running
        self.items = iter(running)
        self.take(5)
        [run] = find_runs().runs
        self.view = LiveFigures.attach(run)
        self.looks: list[LiveRun] = []

    def take(self, items: int) -> None:
        for _ in range(items):
            next(self.items)

    def change(self, workers: int) -> LiveRun:
        """Change the workers of `nap`, and take items until that is seen."""
        self.running.supervisor.request_workers(1, workers, ChangeCause(f"a test wants {workers}", 0.25))

        def is_seen() -> bool:
            self.take(10)
            self.looks.append(self.view.take(detailed=True))
            return self.looks[-1].stages[1].ready_workers == self.looks[-1].stages[1].workers == workers

        until(is_seen)
        self.take(300)
        return self.view.take(detailed=True)


def count_changes(running: ChangeablePipeline) -> dict[str, float]:
    run, supervisor = running._run, running.supervisor
    collector = RunCollector(
        run._figures.description,
        run._figures.read_rows,
        lambda: take_run_timings(supervisor),
        supervisor.worker_changes,
    )
    [family] = [each for each in collector.collect() if each.name == "stagepipe_worker_changes"]
    assert {sample.labels["stage"] for sample in family.samples} == {"nap"}
    return {sample.labels["direction"]: sample.value for sample in family.samples}


def test_all_figures_follow_the_workers(socket_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    path = tmp_path / "t.json"
    with ChangeablePipeline(NAPS, trace=path) as running:
        watched = Watched(running)
        alone = watched.view.take().stages[1]
        assert (alone.workers, alone.min_workers, alone.max_workers, alone.restarts) == (1, 1, 4, 0)
        assert count_changes(running) == {"up": 0, "down": 0}
        many = watched.change(4)
        assert many.last_change is not None
        assert many.last_change.after == 4
        few = watched.change(1)
        assert few.stages[1].workers == 1
        assert {look.state for look in watched.looks} == {"running"}  # a worker that is added is no start of the run
        kill(running, 1)
        again = watched.change(2)
        assert again.stages[1].restarts == 1  # the death; a worker that comes back to its slot is none
        assert count_changes(running) == {"up": 4, "down": 3}
    report = running.report()
    nap = report.stages[1]
    assert [(change.delta, change.workers) for change in report.worker_changes] == [(3, 4), (-3, 1), (1, 2)]
    assert all(change.took_ns > 0 and change.expected_gain == 0.25 for change in report.worker_changes)
    assert report.worker_changes[0].reason == "a test wants 4"
    assert (nap.workers, nap.min_workers, nap.max_workers, nap.crashes) == (2, 1, 4, 1)
    assert 1 < nap.mean_workers < 4
    assert sum((nap.busy, nap.overhead, nap.blocked, nap.starved, nap.starting)) == pytest.approx(1)
    assert (report.stages[0].mean_workers, report.stages[0].max_workers) == (0.0, 0)
    assert max(report.series.stages[1].workers) == 4
    assert report.series.stages[0].workers == ()
    check = check_trace(load_trace(path))
    assert not check.problems
    assert "workers of nap" in check.counters
    reasons = [event["name"] for event in check.instants if event["cat"] == "workers"]
    assert reasons[0] == "nap 1 → 4 workers: a test wants 4"
    assert "nap/1" in check.tracks.values()
    assert not any(name.startswith("nap/1, restart") for name in check.tracks.values())
    lines = [record for record in caplog.records if record.name == "stagepipe.workers"]
    assert [(line.stage, line.workers, line.delta) for line in lines][:2] == [("nap", 2, 1), ("nap", 3, 1)]
    assert lines[0].getMessage() == "nap 1 -> 2 workers: a test wants 4"


def test_a_slot_that_never_had_a_worker_is_no_worker(socket_folder: Path):
    config = pipeline(stage("nap", with_={"seconds": 0.005}), source=60)
    with ChangeablePipeline(config) as running:
        for index, _ in enumerate(running):
            if index == 20:
                running.supervisor.request_workers(1, 2)
    record = running._run.make_record()
    assert len(record.stages[1].worker_loads) <= 2
    assert sum(load.items for load in record.stages[1].worker_loads) == 60
