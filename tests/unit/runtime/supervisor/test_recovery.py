"""The recovery coordinator: what interrupts the consumer, what the next seek says, and when the run has recovered."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.core import Cursor, RunError
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine
from stagepipe.plan import Plan, make_plan
from stagepipe.runtime import DeadLetterStore
from stagepipe.runtime.protocol import ArenaFullEvent, FailureEvent, Seek, decode_command
from stagepipe.runtime.supervisor import recovery as recovery_module
from stagepipe.runtime.supervisor.recovery import RecoveryCoordinator, SeekPublisher
from stagepipe.runtime.supervisor.watchdog import Stall
from stagepipe.runtime.supervisor.workers import RunResources, WorkerSlot
from stagepipe.timing import ProcessCounter, ProcessState
from tests.support.pipelines import pipeline, stage

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
        publisher = SeekPublisher(
            self.board,
            self.resources.worker_wake_events,
            self.workers,
            lambda index, data: self.sent.append((index, data)),
        )
        self.recovery = RecoveryCoordinator(self.plan, self.resources, DeadLetterStore(self.plan, int), publisher)

    def fail(self, error: str, generation: int) -> None:
        event = FailureEvent(process=1, stage="a", worker=0, item="7", message=error, trace="", generation=generation)
        self.recovery.handle_failure(event)

    def fill_arena(self, generation: int) -> None:
        event = ArenaFullEvent(process=1, stage="a", worker=0, item="7", generation=generation, error="too large")
        self.recovery.handle_arena_full(event)

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
    (restart,) = run.recovery.take_due_restarts()
    assert (restart.slot, restart.death.item) == (run.resources.slots[1], "4")
    assert run.recovery.take_due_restarts() == []
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


def test_the_time_lost_ends_with_the_first_item_after_the_seek(run):
    recovery = run.recovery
    recovery.begin_generation(None, 0)
    assert not recovery.awaits_delivery
    recovery.handle_death(run.workers[1])
    recovery.record_delivery()  # of an item from before the seek
    assert recovery.restarts.history[0].lost_ns == 0
    recovery.begin_generation(Cursor(None, 5), 0)
    assert recovery.awaits_delivery
    recovery.record_delivery()
    assert recovery.restarts.history[0].lost_ns > 0
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
    assert run.recovery.restarts.history == []
    with pytest.raises(RunError, match="no"):
        run.recovery.resolve_interrupt(0)


def test_a_restart_that_is_due_after_a_failure_for_good_keeps_nobody_awake(run):
    run.recovery.begin_generation(None, 0)
    run.recovery.handle_death(run.workers[1])
    run.recovery.fail(RunError("no"))
    assert run.recovery.take_due_restarts() == []
    assert run.recovery.restarts.limit_wait_s(5) == 5


def test_a_full_arena_does_not_replace_the_seek_after_a_death(run, monkeypatch):
    recovery = run.recovery
    monkeypatch.setattr(recovery_module, "sleep", lambda duration_s: pytest.fail("a seek needs no wait"))
    windows = recovery.begin_generation(None, 0).windows
    while max(windows) > 1:
        run.fill_arena(recovery.generation)
        assert recovery.resolve_interrupt(0)
        windows = recovery.begin_generation(None, 0).windows
    recovery.handle_death(run.workers[1])
    run.fill_arena(recovery.generation)
    assert recovery.resolve_interrupt(0)


def test_a_death_replaces_a_full_arena(run):
    recovery = run.recovery
    windows = recovery.begin_generation(None, 0).windows
    run.fill_arena(recovery.generation)
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
    assert len(recovery.take_due_restarts()) == 1, "the worker is restarted for the next epoch"


def test_a_death_that_ends_the_run_says_so():
    run = Run(max_restarts=0)
    run.recovery.begin_generation(None, 0)
    run.recovery.handle_death(run.workers[1])
    assert run.recovery.take_due_restarts() == []
    with pytest.raises(RunError, match="`max_restarts=0` allows no restart"):
        run.recovery.resolve_interrupt(0)
    run.resources.close()


def test_stalls_without_progress_fail_the_run(run):
    recovery = run.recovery
    for _ in range(3):
        recovery.begin_generation(None, 0)
        recovery.handle_stall(Stall("no item has moved", 30 * 10**9))
        assert recovery.resolve_interrupt(0)
        recovery.begin_generation(None, 0)
        recovery.record_delivery()
    recovery.handle_stall(Stall("no item has moved", 30 * 10**9))
    recovery.handle_stall(Stall("no item has moved", 30 * 10**9))
    assert recovery.resolve_interrupt(0)
    recovery.handle_stall(Stall("no item has moved", 30 * 10**9))
    with pytest.raises(RunError, match="no progress after 2 restarts"):
        recovery.resolve_interrupt(0)


def test_an_item_that_does_not_fit_halves_the_windows_then_fails(run, monkeypatch):
    recovery = run.recovery
    naps_s: list[float] = []
    monkeypatch.setattr(recovery_module, "sleep", naps_s.append)
    windows = recovery.begin_generation(None, 0).windows
    while max(windows) > 1:
        run.fill_arena(recovery.generation)
        assert recovery.resolve_interrupt(0)
        smaller = recovery.begin_generation(None, 0).windows
        assert smaller == [max(window // 2, 1) for window in windows]
        windows = smaller
    run.fill_arena(recovery.generation)
    assert not recovery.resolve_interrupt(0), "held bytes may be old: ask again"
    assert len(naps_s) == 1
    run.board.region(2)[ProcessCounter.HELD_BYTES] = 8 << 20
    with pytest.raises(
        RunError, match="stage a, worker 0, item 7: too large, and only one item is in flight; a/1 holds"
    ):
        recovery.resolve_interrupt(0)
    recovery.begin_generation(None, 0)
    run.fill_arena(recovery.generation)
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
