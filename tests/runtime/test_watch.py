"""Hangs: an item's time, a worker's start, and a run in which nothing moves."""

import os
import signal
import time

import pytest

from stagepipe import Pipeline, RunError
from stagepipe.runtime.stalls import Doing, diagnosis, nobody_works
from tests.zoo.pipelines import BAD, pipeline, stage

pytestmark = pytest.mark.timeout(60)
SECOND_NS = 1_000_000_000


def test_an_item_that_hangs_is_tried_again_and_then_skipped_with_its_stack():
    hangs = stage(f"{BAD}.hangs", name="hangs", timeout="700ms", retries=1, on_error="skip")
    with Pipeline(pipeline(hangs, stage("same"), source=12)) as running:
        assert list(running) == [number for number in range(12) if number != 5]
        report = running.report()
    (letter,) = report.dead_letters
    assert (letter.item, letter.stage, letter.attempts) == ("5", "hangs", 2)
    assert "`timeout` of 700 ms" in letter.error
    assert len(report.restarts) == 2


def test_the_error_shows_where_it_hung():
    hangs = stage(f"{BAD}.hangs", name="hangs", timeout="700ms", retries=0)
    with pytest.raises(RunError, match=r"stage hangs, worker 0, item 5 .* took longer") as caught:  # noqa: SIM117
        with Pipeline(pipeline(hangs, source=12)) as running:
            list(running)
    assert "in hangs" in caught.value.trace
    assert "control" not in caught.value.trace


def test_waiting_for_others_is_not_the_items_time():
    slow = stage("nap", name="slow", with_={"seconds": 0.4})
    quick = stage("parts", name="quick", timeout="300ms")
    config = pipeline(quick, slow, source=5, window=1)
    with Pipeline(config) as running:
        assert len(list(running)) == 0 + 1 + 2 + 3 + 0
        assert running.report().restarts == ()


def test_a_worker_that_is_stopped_does_not_age():
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


def test_a_worker_that_does_not_get_ready_in_time():
    late = stage("tests.zoo.bad.HangsAtStart", name="late", start_timeout="1s")
    with pytest.raises(RunError, match=r"stage late, worker 0 .* was not ready 1.0 s after its start"):  # noqa: SIM117
        with Pipeline(pipeline(late, source=3)) as running:
            list(running)


def test_who_waits_for_whom():
    doing = [Doing("source/0", item="31"), Doing("decode/0", stopped=True), Doing("decode/1"), Doing("batch/0")]
    assert diagnosis(doing, 10 * SECOND_NS) == (
        "no item has moved for 10 s: decode/0 is stopped (SIGSTOP; `kill -CONT` lets it go on); "
        "source/0 waits for room behind it, for item 31; decode/1 and batch/0 wait"
    )
    starting = diagnosis([Doing("model/0", starting_ns=40 * SECOND_NS), Doing("source/0")], 10 * SECOND_NS)
    assert starting == "no item has moved for 10 s: model/0 has been starting for 40 s; source/0 waits"


def test_nobody_works_only_where_all_wait():
    waits, blocked = Doing("a/0"), Doing("b/0", item="3")
    assert nobody_works([waits, blocked])
    assert not nobody_works([waits, Doing("c/0", item="3", at_ns=1)])
    assert not nobody_works([waits, Doing("c/0", stopped=True)])
    assert not nobody_works([waits, Doing("c/0", starting_ns=1)])
