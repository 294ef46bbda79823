"""What is decided about a worker's death: pure."""

from dataclasses import replace

import pytest

from stagepipe.config import Target
from stagepipe.plan import StagePlan
from stagepipe.runtime.mending import TRIES, Death, Fail, Mending, Restart

STAGE = StagePlan("decode", Target("ops.decode"))
SECOND_NS = 1_000_000_000


def death(**about) -> Death:
    plain = Death(STAGE, worker=1, place=2, pid=77, cause="was killed by SIGKILL", at_ns=0, lived_ns=5 * SECOND_NS)
    return replace(plain, **about)


def decided(mending: Mending, *deaths: Death) -> list[Restart | Fail]:
    return [mending.decide(each) for each in deaths]


def test_a_worker_that_had_lived_is_replaced_at_once():
    assert decided(Mending(10), *[death()] * 5) == [Restart(0.0)] * 5


def test_one_that_dies_over_and_over_is_waited_for_longer_and_longer():
    waits = [each.after_s for each in decided(Mending(100), *[death(lived_ns=0)] * 9)]
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert waits == sorted(waits)


def test_beyond_the_budget_the_run_fails_with_the_history():
    last = decided(Mending(2), *[death(item=str(number), at_ns=number * SECOND_NS) for number in range(3)])[-1]
    assert isinstance(last, Fail)
    assert "workers died 3 times, and `max_restarts` is 2" in last.message
    assert "after 1.0 s: stage decode, worker 1, item 1 (pid 77) was killed by SIGKILL" in last.message


def test_no_budget_means_that_the_first_death_ends_the_run():
    (only,) = decided(Mending(0), death())
    assert isinstance(only, Fail)
    assert "`max_restarts: 0`" in only.message


@pytest.mark.parametrize("retries, tries", [(None, TRIES), (0, 1), (1, 2), (4, 5)])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_an_item_that_kills_too_many_is_poison(retries, tries, on_error):
    stage = replace(STAGE, retries=retries, on_error=on_error)
    *before, last = decided(Mending(100), *[death(stage=stage, key=(7,), item="7")] * tries)
    assert all(isinstance(each, Restart) and not each.poison for each in before)
    if on_error == "skip":
        assert isinstance(last, Restart)
        assert last.poison == tries
    else:
        assert isinstance(last, Fail)
        assert "stage decode, worker 1, item 7" in last.message


def test_other_items_epochs_and_stages_are_counted_apart():
    deaths = [
        death(key=(7,)),
        death(key=(8,)),
        death(key=(7,), epoch=1),
        death(key=(7,), stage=replace(STAGE, name="other")),
        death(key=(7, 1)),
        death(key=(7,)),
    ]
    assert all(isinstance(each, Restart) and not each.poison for each in decided(Mending(100), *deaths))


def test_a_memory_fault_at_an_item_is_not_tried_again_unless_the_stage_says_so():
    (at_once,) = decided(Mending(10), death(key=(7,), fault=True))
    assert isinstance(at_once, Fail)
    patient = replace(STAGE, retries=1)
    assert decided(Mending(10), death(stage=patient, key=(7,), fault=True)) == [Restart(0.0)]


def test_of_several_items_at_once_none_is_blamed_and_each_is_tried_alone():
    many = decided(Mending(10), *[death(key=(4,), items=8)] * 5)
    assert many == [Restart(0.0, alone=True)] * 5


def test_a_stage_that_remembers_cannot_be_begun_again():
    (only,) = decided(Mending(10, stateful="running_mean"), death())
    assert isinstance(only, Fail)
    assert "stage running_mean is `stateful: true`" in only.message


def test_one_that_never_gets_ready_is_given_up_after_three():
    *before, last = decided(Mending(100), *[death(lived_ns=None)] * 3)
    assert all(isinstance(each, Restart) for each in before)
    assert isinstance(last, Fail)
    assert "while it was starting, 3 times in a row" in last.message


def test_one_that_somebody_kills_while_it_starts_is_started_again_as_often_as_the_budget_allows():
    killed = decided(Mending(5), *[death(lived_ns=None, killed=True)] * 6)
    assert all(isinstance(each, Restart) for each in killed[:5])
    assert isinstance(killed[-1], Fail)
