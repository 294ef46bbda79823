"""The restart policy: what follows a worker's death."""

from dataclasses import replace

import pytest

from stagepipe.plan import StagePlan
from stagepipe.runtime.supervisor.restart_policy import (
    DEFAULT_MAX_KILLS_PER_ITEM,
    FailDecision,
    RestartDecision,
    RestartPolicy,
    WorkerDeath,
)
from stagepipe.spec import Target

STAGE = StagePlan(name="decode", target=Target("ops.decode"))
SECOND_NS = 1_000_000_000


def death(**changes) -> WorkerDeath:
    default = WorkerDeath(
        stage=STAGE,
        worker=1,
        process_index=2,
        pid=77,
        cause="was killed by SIGKILL",
        died_at_ns=0,
        uptime_ns=5 * SECOND_NS,
    )
    return replace(default, **changes)


def decide_all(policy: RestartPolicy, *deaths: WorkerDeath) -> list[RestartDecision | FailDecision]:
    return [policy.decide(death) for death in deaths]


def test_a_worker_that_ran_for_long_is_restarted_at_once():
    assert decide_all(RestartPolicy(max_restarts=10), *[death()] * 5) == [RestartDecision(0.0)] * 5


def test_quick_deaths_of_a_worker_delay_its_restarts_more_and_more():
    delays = [decision.delay_s for decision in decide_all(RestartPolicy(max_restarts=100), *[death(uptime_ns=0)] * 9)]
    assert delays == [0.0, 0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert delays == sorted(delays)


def test_more_deaths_than_max_restarts_fail_the_run_with_their_history():
    deaths = [death(item=str(number), died_at_ns=number * SECOND_NS) for number in range(3)]
    last = decide_all(RestartPolicy(max_restarts=2), *deaths)[-1]
    assert isinstance(last, FailDecision)
    assert "workers died 3 times, `max_restarts` is 2" in last.message
    assert "after 1.0 s: stage decode, worker 1, item 1 (pid 77) was killed by SIGKILL" in last.message


def test_with_max_restarts_0_the_first_death_fails_the_run():
    (only,) = decide_all(RestartPolicy(max_restarts=0), death())
    assert isinstance(only, FailDecision)
    assert "`max_restarts=0`" in only.message


@pytest.mark.parametrize("retries, max_kills", [(None, DEFAULT_MAX_KILLS_PER_ITEM), (0, 1), (1, 2), (4, 5)])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_an_item_that_kills_too_many_workers_is_poison(retries, max_kills, on_error):
    stage = replace(STAGE, retries=retries, on_error=on_error)
    *earlier, last = decide_all(RestartPolicy(max_restarts=100), *[death(stage=stage, key=(7,), item="7")] * max_kills)
    assert all(isinstance(decision, RestartDecision) and not decision.poison_kill_count for decision in earlier)
    if on_error == "skip":
        assert isinstance(last, RestartDecision)
        assert last.poison_kill_count == max_kills
    else:
        assert isinstance(last, FailDecision)
        assert "stage decode, worker 1, item 7" in last.message


def test_kills_are_counted_per_item_epoch_and_stage():
    deaths = [
        death(key=(7,)),
        death(key=(8,)),
        death(key=(7,), epoch=1),
        death(key=(7,), stage=replace(STAGE, name="other")),
        death(key=(7, 1)),
        death(key=(7,)),
    ]
    assert all(
        isinstance(decision, RestartDecision) and not decision.poison_kill_count
        for decision in decide_all(RestartPolicy(max_restarts=100), *deaths)
    )


def test_an_item_with_a_memory_fault_is_not_retried_unless_the_stage_has_retries():
    (first,) = decide_all(RestartPolicy(max_restarts=10), death(key=(7,), is_memory_fault=True))
    assert isinstance(first, FailDecision)
    retrying = replace(STAGE, retries=1)
    deaths = [death(stage=retrying, key=(7,), is_memory_fault=True)]
    assert decide_all(RestartPolicy(max_restarts=10), *deaths) == [RestartDecision(0.0)]


def test_a_death_in_a_batch_blames_no_item_and_unbatches_them():
    decisions = decide_all(RestartPolicy(max_restarts=10), *[death(key=(4,), item_count=8)] * 5)
    assert decisions == [RestartDecision(0.0, is_unbatching_needed=True)] * 5


def test_a_stateful_stage_cannot_be_restarted():
    (only,) = decide_all(RestartPolicy(max_restarts=10, stateful_stage="running_mean"), death())
    assert isinstance(only, FailDecision)
    assert "stage running_mean has `stateful=true`" in only.message


def test_a_worker_that_never_becomes_ready_fails_the_run_at_the_third_death():
    *earlier, last = decide_all(RestartPolicy(max_restarts=100), *[death(uptime_ns=None)] * 3)
    assert all(isinstance(decision, RestartDecision) for decision in earlier)
    assert isinstance(last, FailDecision)
    assert "during start-up, 3 times in a row" in last.message


def test_a_worker_that_is_killed_from_outside_during_start_up_is_restarted_up_to_max_restarts():
    decisions = decide_all(RestartPolicy(max_restarts=5), *[death(uptime_ns=None, was_killed_externally=True)] * 6)
    assert all(isinstance(decision, RestartDecision) for decision in decisions[:5])
    assert isinstance(decisions[-1], FailDecision)
