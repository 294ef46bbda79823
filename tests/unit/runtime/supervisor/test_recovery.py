"""Recovery: what the machine decides after a death, a stall, an error or a full arena, and what follows from it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.core import Cursor, RunError
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine
from stagepipe.plan import Plan, StagePlan, make_plan
from stagepipe.runtime import DeadLetterStore
from stagepipe.runtime.protocol import ArenaFullEvent, Seek, StaleLeasesEvent, UnbatchedRange, decode_command
from stagepipe.runtime.supervisor import supervisor as supervisor_module
from stagepipe.runtime.supervisor.recovery import (
    DEFAULT_MAX_KILLS_PER_ITEM,
    Failed,
    Recovery,
    RestartPolicy,
    Stall,
    Wipe,
    WorkerDeath,
)
from stagepipe.runtime.supervisor.supervisor import RecoveryCoordinator
from stagepipe.runtime.supervisor.workers import RunResources, WorkerSlot
from stagepipe.spec import Target
from stagepipe.timing import ProcessCounter, ProcessState
from tests.support.pipelines import pipeline, stage

SECOND_NS = 1_000_000_000
CURVES = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))


@dataclass
class DeadWorker:
    """A worker that was killed from outside a while after its start."""

    slot: WorkerSlot
    is_ready: bool = True
    ready_at_ns: int = 1
    pid: int = 77
    has_memory_fault: bool = False
    was_killed_externally: bool = True
    timed_out_key: tuple[int, ...] = ()

    def describe_exit(self, *, has_oom_kill: bool) -> str:
        del has_oom_kill
        return "was killed by SIGKILL"

    def read_crash_log(self) -> str:
        return ""


class Run:
    """A coordinator with real resources, whose workers only exist in name."""

    def __init__(self, **keys: Any) -> None:
        config = pipeline(stage("same", name="a", workers=2), memory="16MiB", **keys)
        self.plan: Plan = make_plan(load(config), Machine(2, 1 << 30), CURVES)
        self.resources = RunResources(self.plan)
        self.board = self.resources.board
        self.workers: dict[int, Any] = {slot.process_index: DeadWorker(slot) for slot in self.resources.slots}
        self.sent: list[tuple[int, bytes]] = []
        self.recovery = RecoveryCoordinator(
            self.plan,
            self.resources,
            DeadLetterStore(self.plan, int),
            self.workers,
            lambda index, data: self.sent.append((index, data)),
        )

    def fail(self, error: str, generation: int) -> None:
        self.recovery.on(Failed(RunError(error), generation))

    def fill_arena(self, generation: int) -> None:
        self.recovery.on(
            ArenaFullEvent(process=1, stage="a", worker=0, item="7", generation=generation, error="too large")
        )

    def stall(self) -> None:
        self.recovery.handle_stall(Stall("no item has moved", 30 * SECOND_NS, 90 * SECOND_NS))

    def published_seek(self) -> Seek:
        seek = decode_command(self.board.read_seek(self.board.generation) or b"")
        assert isinstance(seek, Seek)
        return seek


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    yield run
    run.resources.close()


def test_a_death_interrupts_the_consumer_until_it_seeks_to_its_cursor(run):
    recovery = run.recovery
    recovery.begin_generation(None, 3)
    assert not recovery.is_interrupted()
    recovery.handle_death(run.workers[1])
    assert recovery.is_interrupted()
    assert recovery.resolve_interrupt(0), "the consumer must seek"
    assert recovery.is_interrupted(), "asking is not seeking"
    seek = recovery.begin_generation(Cursor(None, 5), 3)
    assert not recovery.is_interrupted()
    assert (seek.generation, seek.epoch, seek.era, seek.rebuild_stateful) == (2, 3, 1, True)
    assert run.published_seek() == seek


def test_the_successor_is_due_at_once_and_starts_from_a_clean_region(run):
    region = run.board.region(1)
    region.set_current_key((4,))
    region[ProcessCounter.PROCESS_STATE] = ProcessState.RUNNING
    region[ProcessCounter.LIVE_BYTES] = 1000
    run.recovery.begin_generation(None, 0)
    run.recovery.handle_death(run.workers[1])
    (start,) = run.recovery.take_due_starts()
    assert (start.death.process_index, start.death.item, start.era) == (1, "4", 1)
    assert run.recovery.take_due_starts() == []
    assert (region.current_key, region[ProcessCounter.LIVE_BYTES]) == ((), 0)
    assert region[ProcessCounter.PROCESS_STATE] == ProcessState.STARTING
    assert run.board.stale_bytes == 1000


def test_memory_of_older_eras_counts_until_every_process_has_entered(run):
    run.board.region(1)[ProcessCounter.LIVE_BYTES] = 1000
    run.recovery.begin_generation(None, 0)
    run.recovery.handle_death(run.workers[1])
    *others, consumer = run.resources.process_indices
    for process_index in others:
        run.recovery.record_era_entry(process_index, 1, [])
    assert run.board.stale_bytes == 1000
    run.recovery.record_era_entry(consumer, 1, [])
    assert run.board.stale_bytes == 0


def test_nothing_is_wiped_until_every_process_has_entered_the_newest_era():
    machine = Recovery(RestartPolicy(max_restarts=9), range(2), [4], [4])
    lease = (0, 4096, 100)
    machine.on(death(process_index=0))
    assert machine.on(StaleLeasesEvent(process=0, era=1, leases=[])) == []
    machine.on(death(process_index=0))
    assert machine.on(StaleLeasesEvent(process=1, era=2, leases=[lease])) == [], "process 0 is one era behind"
    assert machine.on(StaleLeasesEvent(process=0, era=2, leases=[])) == [Wipe(2, [lease])]
    assert machine.on(StaleLeasesEvent(process=1, era=2, leases=[])) == [Wipe(2, [])], "it has dropped the lease"


def test_the_time_lost_ends_with_the_first_item_after_the_seek(run):
    recovery = run.recovery
    recovery.begin_generation(None, 0)
    assert not recovery.awaits_delivery
    recovery.handle_death(run.workers[1])
    recovery.record_delivery()  # of an item from before the seek
    assert recovery.restarts[0].lost_ns == 0
    recovery.begin_generation(Cursor(None, 5), 0)
    assert recovery.awaits_delivery
    recovery.record_delivery()
    assert recovery.restarts[0].lost_ns > 0
    assert not recovery.awaits_delivery


def test_an_error_of_a_stage_ends_its_epoch_and_the_next_seek_clears_it(run):
    recovery = run.recovery
    recovery.begin_generation(None, 0)
    run.fail("KeyError: 'wanted'", generation=1)
    with pytest.raises(RunError, match="wanted"):
        recovery.resolve_interrupt(0)
    recovery.begin_generation(None, 1)
    assert recovery.failure is None
    run.fail("KeyError: 'late'", generation=1)
    assert recovery.failure is None, "an error of an older generation is void"


def test_a_stage_that_cannot_be_built_fails_the_run_for_good(run):
    recovery = run.recovery
    recovery.begin_generation(None, 0)
    run.fail("KeyError: 'first'", generation=1)
    run.fail("cannot be built", generation=0)
    recovery.begin_generation(None, 1)
    with pytest.raises(RunError, match="first"):  # the first error is the cause
        recovery.resolve_interrupt(0)


def test_after_a_failure_for_good_a_death_is_not_recovered(run):
    run.recovery.begin_generation(None, 0)
    run.recovery.fail(RunError("no"))
    run.recovery.handle_death(run.workers[1])
    assert run.recovery.restarts == []
    with pytest.raises(RunError, match="no"):
        run.recovery.resolve_interrupt(0)


def test_a_restart_that_is_due_after_a_failure_for_good_keeps_nobody_awake(run):
    run.recovery.begin_generation(None, 0)
    run.recovery.handle_death(run.workers[1])
    run.recovery.fail(RunError("no"))
    assert run.recovery.take_due_starts() == []
    assert run.recovery.limit_wait_s(5) == 5


def test_a_full_arena_does_not_replace_the_seek_after_a_death(run, monkeypatch):
    recovery = run.recovery
    monkeypatch.setattr(supervisor_module, "sleep", lambda duration_s: pytest.fail("a seek needs no wait"))
    windows = recovery.begin_generation(None, 0).windows
    while max(windows) > 1:
        run.fill_arena(run.board.generation)
        assert recovery.resolve_interrupt(0)
        windows = recovery.begin_generation(None, 0).windows
    recovery.handle_death(run.workers[1])
    run.fill_arena(run.board.generation)
    assert recovery.resolve_interrupt(0)


def test_a_death_replaces_a_full_arena(run):
    recovery = run.recovery
    windows = recovery.begin_generation(None, 0).windows
    run.fill_arena(run.board.generation)
    recovery.handle_death(run.workers[1])
    assert recovery.resolve_interrupt(0)
    assert recovery.begin_generation(None, 0).windows == windows, "what fills the arenas died; the windows stay"


def test_an_error_outweighs_a_seek(run):
    recovery = run.recovery
    recovery.begin_generation(None, 0)
    run.fail("KeyError", generation=1)
    recovery.handle_death(run.workers[1])
    with pytest.raises(RunError, match="KeyError"):
        recovery.resolve_interrupt(0)
    assert len(recovery.take_due_starts()) == 1, "the worker is restarted for the next epoch"


def test_a_death_that_ends_the_run_says_so():
    run = Run(max_restarts=0)
    run.recovery.begin_generation(None, 0)
    run.recovery.handle_death(run.workers[1])
    assert run.recovery.take_due_starts() == []
    with pytest.raises(RunError, match="`max_restarts=0` allows no restart"):
        run.recovery.resolve_interrupt(0)
    run.resources.close()


def test_stalls_without_progress_fail_the_run(run):
    recovery = run.recovery
    for _ in range(3):
        recovery.begin_generation(None, 0)
        run.stall()
        assert recovery.resolve_interrupt(0)
        recovery.begin_generation(None, 0)
        recovery.record_delivery()
    run.stall()
    run.stall()
    assert recovery.resolve_interrupt(0)
    run.stall()
    with pytest.raises(RunError, match="no progress after 2 restarts"):
        recovery.resolve_interrupt(0)


def test_an_item_that_does_not_fit_halves_the_windows_then_fails(run, monkeypatch):
    recovery = run.recovery
    naps_s: list[float] = []
    monkeypatch.setattr(supervisor_module, "sleep", naps_s.append)
    windows = recovery.begin_generation(None, 0).windows
    while max(windows) > 1:
        run.fill_arena(run.board.generation)
        assert recovery.resolve_interrupt(0)
        smaller = recovery.begin_generation(None, 0).windows
        assert smaller == [max(window // 2, 1) for window in windows]
        windows = smaller
    run.fill_arena(run.board.generation)
    assert not recovery.resolve_interrupt(0), "held bytes may be old: ask again"
    assert len(naps_s) == 1
    run.board.region(2)[ProcessCounter.HELD_BYTES] = 8 << 20
    with pytest.raises(
        RunError, match="stage a, worker 0, item 7: too large, and only one item is in flight; a/1 holds"
    ):
        recovery.resolve_interrupt(0)
    recovery.begin_generation(None, 0)
    run.fill_arena(run.board.generation)
    assert recovery.resolve_interrupt(1), "an item was delivered in between, so there is progress"


def test_a_full_arena_of_an_older_generation_is_void(run):
    run.recovery.begin_generation(None, 0)
    run.recovery.begin_generation(None, 0)
    run.fill_arena(1)
    assert not run.recovery.is_interrupted()


def test_a_worker_that_becomes_ready_gets_the_current_seek(run):
    run.recovery.handle_ready(run.workers[1])
    assert run.sent == [], "no epoch has begun"
    seek = run.recovery.begin_generation(None, 0)
    run.recovery.handle_ready(run.workers[2])
    ((process_index, data),) = run.sent
    assert (process_index, decode_command(data)) == (2, seek)


# ---------------------------------------------------------------------- the decision on a death

STAGE = StagePlan(name="decode", target=Target("ops.decode"))


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


def decide_all(policy: RestartPolicy, *deaths: WorkerDeath) -> list[float | str]:
    return [policy.decide(death) for death in deaths]


def test_a_worker_that_ran_for_long_is_restarted_at_once():
    assert decide_all(RestartPolicy(max_restarts=10), *[death()] * 5) == [0.0] * 5


def test_quick_deaths_of_a_worker_delay_its_restarts_more_and_more():
    delays = decide_all(RestartPolicy(max_restarts=100), *[death(uptime_ns=0)] * 9)
    assert delays == [0.0, 0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]


def test_more_deaths_than_max_restarts_fail_the_run_with_their_history():
    deaths = [death(item=str(number), died_at_ns=number * SECOND_NS) for number in range(3)]
    last = decide_all(RestartPolicy(max_restarts=2), *deaths)[-1]
    assert isinstance(last, str)
    assert "workers died 3 times, `max_restarts` is 2" in last
    assert "after 1.0 s: stage decode, worker 1, item 1 (pid 77) was killed by SIGKILL" in last


def test_with_max_restarts_0_the_first_death_fails_the_run():
    (only,) = decide_all(RestartPolicy(max_restarts=0), death())
    assert "`max_restarts=0`" in str(only)


@pytest.mark.parametrize("retries, max_kills", [(None, DEFAULT_MAX_KILLS_PER_ITEM), (0, 1), (1, 2), (4, 5)])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_an_item_that_kills_too_many_workers_is_poison(retries, max_kills, on_error):
    stage = replace(STAGE, retries=retries, on_error=on_error)
    policy = RestartPolicy(max_restarts=100)
    killer = death(stage=stage, key=(7,), item="7")
    decide_all(policy, *[killer] * (max_kills - 1))
    assert policy.find_poison(0) == []
    last = policy.decide(killer)
    if on_error == "skip":
        (skip,) = policy.find_poison(0)
        assert (skip.stage, skip.key, skip.kill_count) == ("decode", (7,), max_kills)
        assert skip.error.endswith("was killed by SIGKILL")
        assert policy.find_poison(1) == [], "an item of another epoch"
    else:
        assert "stage decode, worker 1, item 7" in str(last)


def test_kills_are_counted_per_item_epoch_and_stage():
    deaths = [
        death(key=(7,)),
        death(key=(8,)),
        death(key=(7,), epoch=1),
        death(key=(7,), stage=replace(STAGE, name="other")),
        death(key=(7, 1)),
        death(key=(7,)),
    ]
    policy = RestartPolicy(max_restarts=100)
    assert 0.0 in decide_all(policy, *deaths)
    assert policy.find_poison(0) == policy.find_poison(1) == []


def test_an_item_with_a_memory_fault_is_not_retried_unless_the_stage_has_retries():
    (first,) = decide_all(RestartPolicy(max_restarts=10), death(key=(7,), is_memory_fault=True))
    assert isinstance(first, str)
    retrying = replace(STAGE, retries=1)
    deaths = [death(stage=retrying, key=(7,), is_memory_fault=True)]
    assert decide_all(RestartPolicy(max_restarts=10), *deaths) == [0.0]


@pytest.mark.parametrize("suspects", [[(4, 11)], [(4, 4), (9, 9)]], ids=["batch", "threads"])
def test_a_death_with_several_items_in_progress_blames_none_and_separates_them(suspects):
    policy = RestartPolicy(max_restarts=10)
    together = death(key=(4,), suspects=suspects, is_memory_fault=True)
    assert decide_all(policy, *[together] * 5) == [0.0] * 5
    assert policy.find_poison(0) == []
    assert policy.find_unbatched_ranges(0) == [UnbatchedRange("decode", *each) for each in suspects]
    assert policy.find_unbatched_ranges(1) == []


def test_only_deaths_with_a_single_item_in_progress_count_against_it():
    policy = RestartPolicy(max_restarts=10)
    stage = replace(STAGE, on_error="skip", retries=1)
    decide_all(policy, death(stage=stage, key=(4,), suspects=[(4, 4), (5, 5)]), death(stage=stage, key=(5,)))
    assert policy.find_poison(0) == []
    policy.decide(death(stage=stage, key=(5,)))
    assert [(skip.key, skip.kill_count) for skip in policy.find_poison(0)] == [((5,), 2)]


def test_a_death_with_several_items_in_progress_names_no_single_one():
    assert "item 4 or one in progress with it (pid" in death(key=(4,), item="4", suspects=[(4, 4), (8, 9)]).description


def test_a_stateful_stage_cannot_be_restarted():
    (only,) = decide_all(RestartPolicy(max_restarts=10, stateful_stage="running_mean"), death())
    assert "stage running_mean has `stateful=true`" in str(only)


def test_a_worker_that_never_becomes_ready_fails_the_run_at_the_third_death():
    *earlier, last = decide_all(RestartPolicy(max_restarts=100), *[death(uptime_ns=None)] * 3)
    assert all(isinstance(decision, float) for decision in earlier)
    assert "during start-up, 3 times in a row" in str(last)


def test_a_worker_that_is_killed_from_outside_during_start_up_is_restarted_up_to_max_restarts():
    decisions = decide_all(RestartPolicy(max_restarts=5), *[death(uptime_ns=None, was_killed_externally=True)] * 6)
    assert all(isinstance(decision, float) for decision in decisions[:5])
    assert isinstance(decisions[-1], str)
