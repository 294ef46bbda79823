"""Workers that follow the work, in real runs. The stages wait, so that one CPU is enough for many of them."""

import time

import pytest

from stagepipe import Pipeline
from stagepipe.forecast import Decision
from stagepipe.testing import scaling_policy
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(90)

MOST_WORKERS = 6


def get_changes(running):
    return running._run._supervisor.worker_changes


def write_ms(path, ms):
    path.with_suffix(".new").write_text(str(ms))
    path.with_suffix(".new").replace(path)


def make_config(tmp_path, **times_ms):
    for name, ms in times_ms.items():
        write_ms(tmp_path / name, ms)
    waiting = "tests.support.scaling_stages.WaitAsTold"
    workers = {"min": 1, "max": MOST_WORKERS}
    stages = [stage(waiting, name=name, with_={"path": str(tmp_path / name)}, workers=workers) for name in times_ms]
    return pipeline(*stages, source=1_000_000, window=64)


def iterate_until(items, condition, deadline_s=30):
    """Take items until `condition()` is true. Returns how many that were, and the last one."""
    deadline = time.monotonic() + deadline_s
    for count, item in enumerate(items, 1):
        if condition():
            return count, item
        assert time.monotonic() < deadline
    raise AssertionError


def test_workers_move_to_the_stage_that_becomes_slow(tmp_path):
    with Pipeline(make_config(tmp_path, first=30, second=2)) as running:
        changes, items = get_changes(running), iter(running)
        next(items)
        write_ms(tmp_path / "first", 2)
        write_ms(tmp_path / "second", 30)
        iterate_until(items, lambda: any(c.stage == "second" and c.workers == MOST_WORKERS for c in changes))
        first = changes[0]
        assert "second limits the run: its worker is busy" in first.cause.reason
        assert first.cause.gain > 0.5
        assert not any(change.failure for change in get_changes(running))


def test_policy_of_a_test_takes_the_place_of_the_own_one(tmp_path):
    class UpAndDown:
        asked = 0

        def decide(self, sample):
            if sample.is_changing:
                return None
            self.asked += 1
            return Decision(1, 1 if sample.workers[1] > 1 else 2, "a test asks", 0.1)

    policy = UpAndDown()
    with scaling_policy(policy), Pipeline(make_config(tmp_path, first=5)) as running:
        iterate_until(iter(running), lambda: policy.asked > MOST_WORKERS)
        assert {change.cause.reason for change in get_changes(running)} == {"a test asks"}


def test_error_of_the_policy_leaves_the_run_as_it_is(tmp_path, caplog):
    class Broken:
        calls = 0

        def decide(self, sample):
            self.calls += 1
            raise ZeroDivisionError

    policy = Broken()
    with scaling_policy(policy), Pipeline(make_config(tmp_path, first=5)) as running:
        end = time.monotonic() + 2
        count, item = iterate_until(iter(running), lambda: time.monotonic() > end)
        assert item == count - 1
        assert not get_changes(running)
    assert policy.calls == 1
    assert "the numbers of workers no longer change" in caplog.text
