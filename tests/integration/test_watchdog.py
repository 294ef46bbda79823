"""The watchdog: item timeouts, start timeouts, and stalled runs."""

import os
import re
import signal
import time

import pytest

from stagepipe import Pipeline, RunError
from stagepipe.runtime.supervisor import watchdog
from stagepipe.runtime.supervisor.watchdog import WorkerStatus, describe_stall, is_deadlocked
from stagepipe.testing.crash_points import worker_start_hook
from tests.support.lost_packets import HOOK as LOSE_PACKET
from tests.support.pipelines import BAD, pipeline, stage

pytestmark = pytest.mark.timeout(60)
SECOND_NS = 1_000_000_000


def test_an_item_that_hangs_is_retried_and_then_skipped():
    hangs = stage(f"{BAD}.hangs", name="hangs", timeout="1500ms", retries=1, on_error="skip")
    with Pipeline(pipeline(hangs, stage("same"), source=12)) as running:
        assert list(running) == [number for number in range(12) if number != 5]
        report = running.report()
    (letter,) = report.dead_letters
    assert (letter.item, letter.stage, letter.attempts) == ("5", "hangs", 2)
    assert "`timeout` of 1.5 s" in letter.error
    assert len(report.restarts) == 2
    assert report.run.items_in == 12, "items that are read again count once"


def test_the_error_shows_where_the_stage_hung():
    hangs = stage(f"{BAD}.hangs", name="hangs", timeout="1500ms", retries=0)
    with pytest.raises(RunError, match=r"stage hangs, worker 0, item 5 .* exceeded its `timeout` of") as caught:  # noqa: SIM117
        with Pipeline(pipeline(hangs, source=12)) as running:
            list(running)
    assert "in hangs" in caught.value.trace
    assert "control" not in caught.value.trace


def test_waiting_for_other_stages_does_not_count_towards_the_timeout():
    slow = stage("nap", name="slow", with_={"seconds": 1.1})
    quick = stage("parts", name="quick", timeout="1s")
    config = pipeline(quick, slow, source=3, window=1)
    with Pipeline(config) as running:
        assert len(list(running)) == 0 + 1 + 2
        assert running.report().restarts == ()


def test_a_stopped_worker_does_not_time_out():
    with Pipeline(pipeline(stage("nap", name="nap", timeout="1s", with_={"seconds": 0.05}), source=30)) as running:
        found = []
        for number in running:
            found.append(number)
            if number == 5:
                pid = running._run._supervisor.workers[1].pid
                os.kill(pid, signal.SIGSTOP)
                time.sleep(2.5)
                os.kill(pid, signal.SIGCONT)
        assert found == list(range(30))
        assert running.report().restarts == ()


def test_a_worker_that_is_not_ready_within_its_start_timeout():
    late = stage("tests.support.bad_stages.HangsAtStart", name="late", start_timeout="1s")
    with pytest.raises(RunError, match=r"stage late, worker 0 .* was not ready within its `start_timeout` of 1.0 s"):  # noqa: SIM117
        with Pipeline(pipeline(late, source=3)) as running:
            list(running)


@pytest.mark.parametrize("warning_s, warns", [(0.6, True), (60, False)])
def test_a_start_may_take_longer_than_an_item(monkeypatch, caplog, tmp_path, warning_s, warns):
    monkeypatch.setattr(watchdog, "_STALL_WARNING_AFTER_NS", SECOND_NS // 5)
    monkeypatch.setattr(watchdog, "_START_WARNING_AFTER_NS", int(warning_s * SECOND_NS))
    mark = tmp_path / "mark"
    late = stage(f"{BAD}.DiesAndHangsAtStart", name="late", start_timeout="4s", with_={"mark": str(mark)})
    with pytest.raises(RunError), Pipeline(pipeline(late, source=3, max_restarts=1)) as running:  # noqa: PT012
        for _ in running:
            mark.touch()  # not earlier: a stall counts while the caller waits for an item, not while it starts the run
    assert ("late/0 has been starting for" in caplog.text) == warns


def test_the_stall_description_names_busy_blocked_and_idle_workers():
    statuses = [
        WorkerStatus(name="source/0", item="31"),
        WorkerStatus(name="decode/0", is_stopped=True),
        WorkerStatus(name="decode/1"),
        WorkerStatus(name="batch/0"),
    ]
    assert describe_stall(statuses, 10 * SECOND_NS) == (
        "no item has moved for 10 s: decode/0 is stopped (SIGSTOP; `kill -CONT` resumes it); "
        "source/0 is waiting for room downstream to send item 31; decode/1 and batch/0 are waiting"
    )
    starting = describe_stall(
        [WorkerStatus(name="model/0", starting_ns=40 * SECOND_NS), WorkerStatus(name="source/0")], 10 * SECOND_NS
    )
    assert starting == "no item has moved for 10 s: model/0 has been starting for 40 s; source/0 is waiting"
    debugged = [WorkerStatus(name="decode/0", item="7", item_age_ns=12 * SECOND_NS, is_debugged=True)]
    assert describe_stall(debugged, 10 * SECOND_NS) == (
        "no item has moved for 10 s: decode/0 has been processing item 7 for 12 s, with a debugger attached"
    )


def test_a_run_is_deadlocked_only_if_all_workers_wait():
    idle, blocked = WorkerStatus(name="a/0"), WorkerStatus(name="b/0", item="3")
    assert is_deadlocked([idle, blocked])
    assert not is_deadlocked([idle, WorkerStatus(name="c/0", item="3", item_age_ns=1)])
    assert not is_deadlocked([idle, WorkerStatus(name="c/0", is_stopped=True)])
    assert not is_deadlocked([idle, WorkerStatus(name="c/0", starting_ns=1)])


def test_a_deadlock_restarts_from_the_last_item_and_the_report_says_so(monkeypatch, caplog):
    monkeypatch.setattr(watchdog, "_STALL_RECOVERY_AFTER_NS", SECOND_NS)
    with worker_start_hook(LOSE_PACKET, "source/0:5"):  # noqa: SIM117 - the hook must outlive the start
        with Pipeline(pipeline(stage("same", workers=2), source=40)) as running:
            assert list(running) == list(range(40))
            report = running.report()
    (restart,) = report.restarts
    assert (restart.kind, restart.stage, restart.worker, restart.item) == ("stall", "", -1, "")
    assert re.match(r"no item has moved for \d+\.\d s", restart.cause)
    assert restart.lost_ns > SECOND_NS
    assert sum(record.crashes for record in report.stages) == 0
    assert f"{restart.cause}; restarting from the last delivered item" in caplog.messages
