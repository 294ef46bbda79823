"""Workers are added and retire while a run goes on: the output is the same as with a fixed number of them."""

import signal
import time
from dataclasses import replace

import pytest

from stagepipe import Pipeline
from stagepipe.spec import WorkerRange
from stagepipe.testing import scaling_policy
from stagepipe.timing import ProcessCounter, ProcessState
from tests.support.kills import until
from tests.support.pipelines import batch, outputs, pipeline, plain, shuffle, stage

pytestmark = pytest.mark.timeout(90)

MOST_WORKERS = 4
CHAIN = pipeline(
    stage("image", with_={"size": 200}),
    shuffle(7),
    stage("same"),
    batch(4),
    stage("same", name="last"),
    source=400,
    max_restarts=50,
)


class NoDecision:
    """Leaves the changes to the test."""

    def decide(self, sample):
        del sample


@pytest.fixture(autouse=True)
def _only_changes_of_the_test():
    with scaling_policy(NoDecision()):
        yield


class ChangeablePipeline(Pipeline):
    """A pipeline whose stages that may have several workers have slots for four."""

    def _plan_run(self):
        plan = super()._plan_run()
        processes = [
            replace(process, worker_bounds=WorkerRange(1, MOST_WORKERS)) if process.role.value == "stage" else process
            for process in plan.processes
        ]
        return replace(plan, processes=tuple(processes))

    @property
    def supervisor(self):
        return self._run._supervisor

    def set_workers(self, stage_name, workers):
        """Ask for a number of workers, and wait until it is there, but not long: a slot may still be in use."""
        names = [process.name for process in self.supervisor.plan.processes]
        group = names.index(stage_name)
        self.supervisor.request_workers(group, workers)
        deadline = time.monotonic() + 0.3
        while self.count(group) != workers and time.monotonic() < deadline:
            time.sleep(0.005)

    def count(self, group):
        slots = [slot for slot in self.supervisor.resources.slots if slot.worker_group == group]
        return sum(self.region(slot.process_index).has_worker for slot in slots)

    def region(self, process_index):
        return self.supervisor.board.region(process_index)


def test_workers_that_come_and_go_change_nothing_in_the_output():
    found = []
    with ChangeablePipeline(CHAIN) as running:
        for index, item in enumerate(running):
            found.append(plain(item))
            del item
            if index % 10 == 5:
                running.set_workers("image", 1 + index // 10 % MOST_WORKERS)
            if index % 10 == 8:
                running.set_workers("last", MOST_WORKERS - index // 10 % MOST_WORKERS)
        changes = running.supervisor.worker_changes
        report = running.report()
    assert found == outputs(CHAIN, inline=True)
    assert len(changes) > 15
    assert {change.delta for change in changes} == {1, -1}
    assert not report.restarts


def test_workers_that_come_and_go_among_kills_change_nothing_in_the_output():
    found = []
    with ChangeablePipeline(CHAIN) as running:
        for index, item in enumerate(running):
            found.append(plain(item))
            del item
            if index % 6 == 1:
                running.supervisor.request_workers(1, 1 + index // 6 % MOST_WORKERS)
            if index % 12 == 3:
                workers = list(running.supervisor.workers.values())
                workers[index // 12 % len(workers)].send_signal(signal.SIGKILL)
        report = running.report()
        changes = running.supervisor.worker_changes
    assert found == outputs(CHAIN, inline=True)
    assert len(changes) > 10
    assert len(report.restarts) > 3


def test_a_slot_that_is_left_and_taken_again_counts_no_restart_and_no_time_without_a_worker():
    with ChangeablePipeline(pipeline(*CHAIN["stages"], source=100_000)) as running:
        items = iter(running)
        next(items)
        [slot] = [slot for slot in running.supervisor.resources.slots if slot.name == "image/1"]
        region = running.region(slot.process_index)
        assert region[ProcessCounter.PROCESS_STATE] == ProcessState.DORMANT
        first_start_ns = 0
        for _ in range(3):
            running.set_workers("image", 2)
            next(items)
            until(lambda: region[ProcessCounter.PROCESS_STATE] == ProcessState.RUNNING)
            first_start_ns = first_start_ns or region[ProcessCounter.STARTED_NS]
            running.set_workers("image", 1)
            for _ in items:
                if region[ProcessCounter.PROCESS_STATE] == ProcessState.DORMANT:
                    break
            time.sleep(0.2)
        covered_ns = region[ProcessCounter.STOPPED_NS] - region[ProcessCounter.STARTED_NS]
        assert region[ProcessCounter.INCARNATION] == region[ProcessCounter.PLANNED_STARTS] == 2
        assert covered_ns <= region[ProcessCounter.STOPPED_NS] - first_start_ns - 2 * 200_000_000
        assert region[ProcessCounter.LIVE_BYTES] == 0


def test_a_worker_that_cannot_be_added_does_not_end_the_run(caplog, tmp_path):
    config = pipeline(stage("tests.support.bad_stages.BuiltOnce", with_={"mark": str(tmp_path / "mark")}), source=60)
    with ChangeablePipeline(config) as running:
        items = iter(running)
        found = [plain(next(items))]
        running.supervisor.request_workers(1, 2)
        until(lambda: running.supervisor.worker_changes and running.supervisor.worker_changes[-1].failure)
        found += map(plain, items)
        assert len(running.supervisor.worker_changes) == 1
    assert len(found) == 60
    assert "only one of me fits" in running.supervisor.worker_changes[0].failure
    assert "continues with 1 of 2 workers" in caplog.text
