"""A worker comes or goes at each awkward moment: the output, the state and the figures are those of a calm run."""

import itertools
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from stagepipe import RunError
from stagepipe.api import open_shards, run_to_sink
from stagepipe.timing import ProcessCounter, ProcessState
from tests.support.changing_workers import ChangeablePipeline, WorkerChanger
from tests.support.kills import until
from tests.support.pipelines import batch, outputs, pipeline, plain, stage
from tests.support.processes import list_run_processes
from tests.support.sink_output import list_leftovers, make_config, read_rows, write

pytestmark = pytest.mark.timeout(120)
CHANGED = "tests.support.changed_stages"
TICK = stage(f"{CHANGED}.tick", name="tick", retries=100)
ENDLESS = 1_000_000


def slots_of(running, name):
    return [slot for slot in running.supervisor.resources.slots if slot.process_plan.name == name]


def state_of(running, name):
    """The state of the worker in a slot, named as in `tick/1`."""
    [slot] = [slot for slot in running.supervisor.resources.slots if slot.name == name]
    return ProcessState(running.supervisor.board.region(slot.process_index)[ProcessCounter.PROCESS_STATE])


def count_workers(running, name):
    """How many workers run and take items."""
    workers = dict(running.supervisor.workers)
    return sum(
        slot.process_index in workers
        and workers[slot.process_index].is_ready
        and state_of(running, slot.name) is ProcessState.RUNNING
        for slot in slots_of(running, name)
    )


def request(running, name, workers):
    names = [process.name for process in running.supervisor.plan.processes]
    running.supervisor.request_workers(names.index(name), workers)


def move(running, items, name, workers):
    """Take items until the stage has so many workers and all other slots are empty. Return the items."""
    request(running, name, workers)
    taken = []
    deadline = time.monotonic() + 20
    while count_workers(running, name) != workers or any(
        state_of(running, slot.name) not in {ProcessState.RUNNING, ProcessState.DORMANT}
        for slot in slots_of(running, name)
    ):
        taken.append(plain(next(items)))
        assert time.monotonic() < deadline, [state_of(running, slot.name) for slot in slots_of(running, name)]
    return taken


def kill(running, name):
    [pid] = [worker.pid for worker in list(running.supervisor.workers.values()) if worker.name == name]
    os.kill(pid, signal.SIGKILL)


def numbers(count):
    return list(range(count))


# ---------------------------------------------------------------------------------------------- when


def test_workers_are_added_while_an_epoch_runs_and_between_epochs():
    with ChangeablePipeline(pipeline(TICK, source=400)) as running:
        items = iter(running)
        found = move(running, items, "tick", 3)
        assert found + list(items) == numbers(400)
        request(running, "tick", 4)
        until(lambda: count_workers(running, "tick") == 4)
        assert list(running) == numbers(400)
        request(running, "tick", 1)
        until(lambda: count_workers(running, "tick") == 1)
        assert list(running) == numbers(400)
        assert not running.report().restarts


def test_workers_are_added_and_retire_before_the_first_epoch():
    with ChangeablePipeline(pipeline({**TICK, "workers": 2}, source=50)) as running:
        running.start()
        request(running, "tick", 4)
        until(lambda: count_workers(running, "tick") == 4)
        request(running, "tick", 1)
        assert list(running) == numbers(50)
        assert list(running) == numbers(50)
        until(lambda: state_of(running, "tick/3") is ProcessState.DORMANT)


def test_a_worker_is_added_during_a_recovery():
    with ChangeablePipeline(pipeline({**TICK, "workers": 2}, source=600)) as running:
        items = iter(running)
        found = [next(items) for _ in range(20)]
        restarts = running.supervisor.recovery.restarts
        for deaths, workers in enumerate((3, 4, 2, 4, 1, 3), 1):
            kill(running, "tick/0")
            request(running, "tick", workers)  # its death is being handled
            found += [next(items) for _ in range(20)]
            until(lambda deaths=deaths: len(restarts) == deaths and running.supervisor.workers[1].poll() is None)
        found += items
        assert len(running.report().restarts) == 6
    assert found == numbers(600)


def test_len_does_not_wait_for_a_worker_that_is_added(tmp_path):
    gate = tmp_path / "gate"
    slow = stage(f"{CHANGED}.SlowToBuild", name="slow", with_={"mark": str(tmp_path / "mark"), "gate": str(gate)})
    with ChangeablePipeline(pipeline(slow, source=40)) as running:
        running.start()
        until(lambda: count_workers(running, "slow") == 1)
        request(running, "slow", 2)
        until(lambda: state_of(running, "slow/1") is ProcessState.STARTING)
        assert len(running) == 40
        assert list(running) == numbers(40)
        assert state_of(running, "slow/1") is ProcessState.STARTING
        gate.touch()
        until(lambda: count_workers(running, "slow") == 2)
        assert len(running) == 40
        assert list(running) == numbers(40)


# ---------------------------------------------------------------------------------------------- again and again


def count_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_slot_that_is_left_and_taken_many_times_keeps_its_figures_and_no_descriptors():
    with ChangeablePipeline(pipeline(TICK, source=ENDLESS)) as running:
        items = iter(running)
        found = move(running, items, "tick", 2)
        found += move(running, items, "tick", 1)
        descriptors = count_descriptors()
        for _ in range(15):
            found += move(running, items, "tick", 2)
            found += move(running, items, "tick", 1)
        assert count_descriptors() <= descriptors
        assert found == numbers(len(found))
        region = running.supervisor.board.region(2)
        assert region[ProcessCounter.INCARNATION] == region[ProcessCounter.PLANNED_STARTS] == 15
        assert region[ProcessCounter.LIVE_BYTES] == 0
    report = running.report()
    assert not report.restarts
    [row] = [row for row in report.stages if row.name == "tick"]
    assert row.items >= len(found)


def test_the_time_that_a_slot_is_empty_does_not_count():
    with ChangeablePipeline(pipeline(TICK, source=ENDLESS)) as running:
        items = iter(running)
        region = running.supervisor.board.region(2)
        empty_ns = 0
        move(running, items, "tick", 2)
        started_ns = region[ProcessCounter.STARTED_NS]
        for _ in range(3):
            move(running, items, "tick", 1)
            time.sleep(0.3)
            empty_ns += 300_000_000
            move(running, items, "tick", 2)
        assert region[ProcessCounter.STARTED_NS] >= started_ns + empty_ns
        assert region[ProcessCounter.STARTED_NS] <= region[ProcessCounter.READY_NS] <= time.perf_counter_ns()
        assert region[ProcessCounter.STOPPED_NS] == 0


# ---------------------------------------------------------------------------------------------- deaths


def test_a_worker_that_is_killed_while_it_is_added_is_no_restart(tmp_path):
    gate = tmp_path / "gate"
    slow = stage(f"{CHANGED}.SlowToBuild", name="slow", with_={"mark": str(tmp_path / "mark"), "gate": str(gate)})
    with ChangeablePipeline(pipeline(slow, source=300)) as running:
        items = iter(running)
        found = [next(items)]
        request(running, "slow", 2)
        until(lambda: list(tmp_path.glob("mark.*")))
        kill(running, "slow/1")
        until(lambda: running.supervisor.worker_changes[-1].failure)
        found += [next(items) for _ in range(20)]
        assert state_of(running, "slow/1") is ProcessState.DORMANT
        gate.touch()
        found += move(running, items, "slow", 2)
        found += items
        changes = running.supervisor.worker_changes
        report = running.report()
    assert found == numbers(300)
    assert [bool(change.failure) for change in changes] == [True, False]
    assert "SIGKILL" in changes[0].failure
    assert not report.restarts


@pytest.mark.parametrize("holds", [False, True])
def test_a_worker_that_is_killed_while_it_retires_loses_nothing(holds):
    make = stage(f"{CHANGED}.make_megabyte", name="make", retries=100, workers=3)
    with ChangeablePipeline(pipeline(make, source=150)) as running:
        items = iter(running)
        found = []
        for _ in range(4):
            held = [next(items) for _ in range(6)]
            request(running, "make", 1)
            if holds:
                until(
                    lambda: (
                        ProcessState.RETIRING in {state_of(running, slot.name) for slot in slots_of(running, "make")}
                    )
                )
            for worker in list(running.supervisor.workers.values()):
                if worker.slot.process_plan.name == "make" and worker.slot.worker and worker.poll() is None:
                    os.kill(worker.pid, signal.SIGKILL)
            found += map(plain, held)
            del held
            request(running, "make", 3)
            found += [plain(next(items)) for _ in range(10)]
        found += map(plain, items)
    assert found == outputs(pipeline(make, source=150), inline=True)


# ---------------------------------------------------------------------------------------------- memory


def resident_bytes(running, slot):
    return os.fstat(running.supervisor.resources.arena_memfds[slot.process_index]).st_blocks * 512


def held_items(running, items, name):
    """Take items until one is held of each slot of a stage, by the arena of its array. Return them by slot."""
    arenas = {slot.process_index: slot for slot in slots_of(running, name)}
    found = {}
    order = []
    while len(found) < len(arenas):
        item = next(items)
        owner = item["x"].base
        while owner is not None and getattr(owner, "block_id", None) is None:
            owner = owner.base
        order.append(item["id"])
        found.setdefault(owner.block_id[0], item)
    return found, order


def assert_untouched(item):
    assert (np.asarray(item["x"]) == item["id"] % 251).all()


def test_a_worker_whose_item_is_held_for_long_stays_until_it_is_released():
    make = stage(f"{CHANGED}.make_megabyte", name="make", workers=2)
    with ChangeablePipeline(pipeline(make, source=ENDLESS), most_workers=2) as running:
        items = iter(running)
        held, _ = held_items(running, items, "make")
        request(running, "make", 1)
        until(lambda: state_of(running, "make/1") is ProcessState.RETIRING)
        for _ in range(100):
            next(items)
        assert state_of(running, "make/1") is ProcessState.RETIRING
        assert_untouched(held[2])
        request(running, "make", 2)  # the slot is not free
        for _ in range(50):
            next(items)
        assert_untouched(held[2])
        held.clear()
        until(lambda: next(items) and count_workers(running, "make") == 2)


def test_an_item_that_is_held_across_an_era_keeps_its_memory_when_its_worker_has_left():
    make = stage(f"{CHANGED}.make_megabyte", name="make", workers=2, retries=100)
    with ChangeablePipeline(pipeline(make, TICK, source=ENDLESS), most_workers=2) as running:
        items = iter(running)
        held, _ = held_items(running, items, "make")
        kill(running, "tick/0")  # an era begins: the workers of `make` do not know of these blocks any more
        for _ in range(20):
            next(items)
        move(running, items, "make", 1)
        assert state_of(running, "make/1") is ProcessState.DORMANT
        for item in held.values():
            assert_untouched(item)
        move(running, items, "make", 2)  # it allocates in the arena of the one that has left
        for _ in range(100):
            next(items)
        for item in held.values():
            assert_untouched(item)
        held.clear()
        del item


def test_an_empty_slot_takes_no_memory():
    make = stage(f"{CHANGED}.make_megabyte", name="make")
    with ChangeablePipeline(pipeline(make, source=ENDLESS), most_workers=2) as running:
        items = iter(running)
        [_, slot] = slots_of(running, "make")
        assert resident_bytes(running, slot) == 0
        for _ in range(2):
            move(running, items, "make", 2)
            until(lambda: next(items) and resident_bytes(running, slot) > 1_000_000)
            move(running, items, "make", 1)
            until(lambda: resident_bytes(running, slot) == 0)


def test_a_stage_that_keeps_its_inputs_retires_all_the_same():
    keep = stage("tests.chaos.stages.Keeping", name="keep", with_={"count": 3}, workers=2)
    make = stage(f"{CHANGED}.make_megabyte", name="make")
    with ChangeablePipeline(pipeline(make, keep, source=ENDLESS)) as running:
        items = iter(running)
        for _ in range(30):
            next(items)
        for workers in (1, 3, 1, 2):
            move(running, items, "keep", workers)
        for item in itertools.islice(items, 100):
            assert_untouched(item)


# ---------------------------------------------------------------------------------------------- ends


@pytest.mark.parametrize("workers", [1, 4])
def test_close_while_workers_start_or_retire_leaves_nothing(workers, tmp_path):
    slow = stage(
        f"{CHANGED}.SlowToBuild",
        name="slow",
        with_={"mark": str(tmp_path / "mark"), "gate": str(tmp_path / "gate")},
    )
    make = stage(f"{CHANGED}.make_megabyte", name="make", workers=2)
    descriptors = count_descriptors()
    for delay_s in (0.0, 0.01, 0.03, 0.1):
        running = ChangeablePipeline(pipeline(slow, make, source=ENDLESS))
        items = iter(running)
        held = [next(items) for _ in range(5)]
        request(running, "make", workers)
        request(running, "slow", 2)  # it never becomes ready
        time.sleep(delay_s)
        started_s = time.monotonic()
        running.close()
        assert time.monotonic() - started_s < 10
        del held, items, running
        (tmp_path / "mark").unlink()
    until(lambda: not [process for process in list_run_processes() if "stagepipe" in " ".join(process.cmdline())])
    until(lambda: count_descriptors() <= descriptors + 3)  # of the fork server


def test_ctrl_c_while_workers_start_and_retire_ends_the_run():
    make = stage(f"{CHANGED}.make_megabyte", name="make", workers=2)
    running = ChangeablePipeline(pipeline(make, TICK, source=ENDLESS))
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))

    def run():
        with running, WorkerChanger(running.start().supervisor, seed=1):
            timer.start()
            for item in running:
                assert_untouched(item)

    with pytest.raises(KeyboardInterrupt):
        run()
    timer.join()
    assert (
        running._run is None
        or not running.supervisor.workers
        or all(worker.poll() is not None for worker in running.supervisor.workers.values())
    )


def test_a_stage_that_fails_while_workers_come_and_go_ends_the_run_with_its_error():
    bad = stage("tests.support.bad_stages.exits", name="bad")
    with ChangeablePipeline(pipeline(TICK, bad, source=50)) as running:
        request(running.start(), "bad", 3)
        with pytest.raises(RunError, match="item 5"):
            list(running)


# ---------------------------------------------------------------------------------------------- every kind of stage

KINDS = {
    "threads": [{**TICK, "concurrency": 3}],
    "batches": [
        stage("tests.chaos.stages.listed", name="listed", with_={"salt": 3}, batch={"size": 4, "max_wait": "5ms"})
    ],
    "parts": [stage("tests.chaos.stages.parts", name="parts", with_={"salt": 3}), TICK],
    "groups": [TICK, batch(5), stage("same", name="same")],
}


@pytest.mark.parametrize("order", ["source", "any"])
@pytest.mark.parametrize("kind", KINDS)
def test_workers_of_any_stage_come_and_go(kind, order):
    if kind == "groups" and order == "any":
        pytest.skip("a batch has the order of the source")
    config = pipeline(*KINDS[kind], source=300, order=order)
    found = []
    with ChangeablePipeline(config) as running, WorkerChanger(running.start().supervisor, seed=5) as changer:
        for item in running:
            found.append(plain(item))
            time.sleep(0.006)
    expected = outputs(config, inline=True)
    assert (sorted(found) if order == "any" else found) == (sorted(expected) if order == "any" else expected)
    assert changer.counts["changes"] >= 2


def test_the_workers_of_a_sink_come_and_go(tmp_path):
    config = make_config(tmp_path / "changed", "jsonl", 800)
    config["stages"].append({"name": "tick", "uses": f"{CHANGED}.tick"})
    with open_shards(running := ChangeablePipeline(config), resume=False) as shards, running:
        running.feed_sinks()
        with WorkerChanger(running.start().supervisor, seed=3) as changer:
            run_to_sink(running, lambda progress: None, shards=shards)
    write(make_config(tmp_path / "inline", "jsonl", 800))
    assert read_rows(tmp_path / "changed", "jsonl") == read_rows(tmp_path / "inline", "jsonl")
    assert not list_leftovers(tmp_path / "changed")
    assert changer.counts["changes"] >= 2
