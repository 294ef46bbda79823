"""A worker of several processes: each works on each item, rank 0 answers, and the death of one is that of all."""

import ast
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from torch import distributed

from stagepipe import ConfigError, Pipeline, RunError
from stagepipe.config import load
from tests.chaos.leftovers import Leftovers
from tests.support.kills import kill, until, until_ready
from tests.support.paths import ROOT
from tests.support.pipelines import batch, outputs, stage
from tests.support.pipelines import pipeline as plain_pipeline
from tests.support.processes import is_alive, list_run_processes

pytestmark = pytest.mark.timeout(150)

GROUPED = "tests.support.grouped_stages"
RANKS = "tests.support.rank_stages"


@pytest.fixture
def _leaves_the_group():
    """An inline stage joins a group of one in this process, which must not last: other tests ask torch for a rank."""
    assert not distributed.is_initialized()
    yield
    distributed.destroy_process_group()


def pipeline(*stages, **keys):
    return plain_pipeline(*stages, preload=["torch"], **keys)  # several processes would import it at a time


def grouped(name, *, group=2, module=GROUPED, **keys):
    return stage(f"{module}.{name}", group=group, **keys)


def sums(count, group=2, first=0):
    return [(item, float(item * group * (group + 1) // 2)) for item in range(first, count)]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_ranks_meet_in_a_collective(start):
    config = pipeline(grouped("Summed", group=3), source=30, start=start)
    assert outputs(config) == sums(30, group=3)


def test_two_groups_share_the_items():
    config = pipeline(grouped("Summed", workers=2), source=60)
    assert outputs(config) == sums(60)


def test_groups_retire_and_are_added_while_the_run_goes_on():
    config = pipeline(grouped("Summed", workers={"min": 1, "max": 2}), source=2000)
    with Pipeline(config) as running:
        supervisor = running._run._supervisor
        items = iter(running)
        found = [next(items) for _ in range(20)]
        for workers, delta in ((1, -1), (2, 1)):  # it starts with two
            supervisor.request_workers(1, workers)
            until(lambda delta=delta: any(each.delta == delta and each.done_ns for each in supervisor.worker_changes))
            found += [next(items) for _ in range(20)]
        assert found + list(items) == sums(2000)
        assert not any(each.failure for each in supervisor.worker_changes)
    assert not list_run_processes()


@pytest.mark.usefixtures("_leaves_the_group")
def test_each_rank_has_the_item_and_the_same_random_numbers():
    config = pipeline(grouped("Gathered"), source=4, seed=7)
    both = outputs(config)
    assert [[rank for rank, *_ in each] for each in both] == [[0, 1]] * 4
    seen = [{tuple(rest) for _, *rest in each} for each in both]
    assert all(len(each) == 1 for each in seen), "the ranks differ"
    assert len(set().union(*seen)) == 4
    assert seen == [{tuple(each[0][1:])} for each in outputs(config, inline=True)]


@pytest.mark.usefixtures("_leaves_the_group")
def test_inline_the_group_is_of_one():
    before = dict(os.environ)
    assert outputs(pipeline(grouped("Counting"), source=3), inline=True) == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert dict(os.environ) == before


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_environment_is_there_before_the_first_import(start, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # as under torchrun, with the caller's ranks
    monkeypatch.setenv("RANK", "7")
    config = pipeline(
        grouped(
            "Environment",
            module=RANKS,
            group=3,
            with_={"folder": str(tmp_path)},
            env={"EXTRA": "1"},
            device="cpu",
            threads=2,
        ),
        source=2,
        start=start,
    )
    assert outputs(config) == [0, 1]
    seen = [ast.literal_eval((tmp_path / str(rank)).read_text()) for rank in range(3)]
    ports = {each.pop("MASTER_PORT") for each in seen}
    assert len(ports) == 1
    assert seen == [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "EXTRA": "1",
            "imported": str(rank),
            "torchelastic": [],
            "devices": "",
        }
        for rank in range(3)
    ]


def test_large_arrays_are_copied_to_each_rank():
    config = pipeline(stage("megabyte"), grouped("Sizes"), source=5)
    expected = [float(item["image"].sum()) for item in Pipeline(pipeline(stage("megabyte"), source=5))]
    assert outputs(config) == [[(total, False)] * 2 for total in expected]


def test_a_stage_that_may_change_its_input_has_its_own_copy_in_each_rank():
    config = pipeline(stage("megabyte"), grouped("Sizes", mutable=True), source=2)
    assert [[is_writable for _, is_writable in each] for each in outputs(config)] == [[True, True]] * 2


def test_lists_and_conditions_and_caches_are_decided_by_rank_0(tmp_path):
    lists = pipeline(grouped("Listed", batch={"size": 4, "max_wait": "5s"}), source=8)
    assert outputs(lists) == [(item, 12.0) for item in range(4)] + [(item, 44.0) for item in range(4, 8)]
    some = pipeline(stage("megabyte"), grouped("Gathered", field="id", into="seen", when={"id": {"lt": 1}}), source=2)
    first, second = outputs(some)
    assert [rank for rank, *_ in first["seen"]] == [0, 1]
    assert "seen" not in second
    cached = pipeline(grouped("Summed", cache={"path": str(tmp_path), "key": "1"}), source=10)
    assert outputs(cached) == sums(10)
    assert outputs(cached) == sums(10)


def test_a_resume_in_mid_epoch():
    config = pipeline(grouped("Summed"), source=20)
    with Pipeline(config) as running:
        found = [next(items := iter(running))] + [next(items) for _ in range(6)]
        state = running.state_dict()
    with Pipeline(config) as running:
        running.load_state_dict(state)
        assert found + list(running) == sums(20)


def test_state_is_built_again_in_all_ranks():
    config = pipeline(grouped("Counting", stateful=True), source=6)
    with Pipeline(config) as running:
        for _, item in zip(range(3), running, strict=False):
            assert item[1] == 2.0 * (item[0] + 1)
        assert [total for _, total in running] == [2.0 * (item + 1) for item in range(6)]


@pytest.mark.parametrize(
    "stages, message",
    [
        ([stage("same", group=0)], "group"),
        ([stage("same", group="two")], "group"),
        ([stage("same", group=2, concurrency=2)], "a stage with `group` cannot have `concurrency`"),
        ([stage("same", group=2), stage("double", fuse=True)], "`same` has `group`, so no stage is fused into it"),
        ([stage("same"), stage("double", group=2, fuse=True)], "a fused stage cannot have `group`"),
        ([batch(2) | {"group": 2}], "cannot have `group`: it restores the item order"),
    ],
)
def test_invalid_groups_are_refused(stages, message):
    with pytest.raises(ConfigError, match=message):
        load(pipeline(*stages))


def test_only_stages_have_groups_and_only_on_the_local_engine():
    source = {"uses": "stagepipe.sources.numbers", "with": {"count": 3}, "group": 2}
    with pytest.raises(ConfigError, match="group"):
        load(pipeline(source=source))
    with pytest.raises(ConfigError, match="group"):
        load(pipeline(sink={"uses": "stagepipe.sinks.jsonl", "with": {"path": "out"}, "group": 2}))
    with pytest.raises(ConfigError, match="with `engine: ray`, a stage cannot have `group`"):
        load(pipeline(stage("same", group=2), engine="ray"))


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize("rank", [0, 1, -1])
def test_an_error_of_all_ranks_or_after_the_collective_is_that_of_the_item(rank):
    config = pipeline(grouped("Late", with_={"at": 3, "rank": rank}), source=10)
    named = "rank 1: " if rank == 1 else ""
    with pytest.raises(RunError, match=rf"stage late, worker 0, item 3: {named}ValueError: no layer for 3") as caught:
        outputs(config)
    assert isinstance(caught.value, ValueError)
    assert "no layer for" in caught.value.trace
    assert "grouped_stages.py" in caught.value.trace


def test_items_that_fail_in_one_rank_are_skipped():
    config = pipeline(grouped("Late", with_={"at": 3, "rank": 1}, on_error="skip"), source=10)
    with Pipeline(config) as running:
        assert list(running) == [each for each in sums(10) if each[0] != 3]
        report = running.report()
    assert "rank 1: ValueError" in report.dead_letters[0].error
    assert not report.restarts


def test_a_retry_is_made_by_all_ranks(tmp_path):
    config = pipeline(
        grouped("Late", with_={"at": 3, "rank": 1, "mark": str(tmp_path / "failed")}, retries=1), source=10
    )
    with Pipeline(config) as running:
        assert list(running) == sums(10)
        assert running.report().stages[1].retries == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_while_the_others_wait_ends_the_group(rank, tmp_path):
    config = pipeline(grouped("Failing", with_={"at": 3, "rank": rank, "mark": str(tmp_path / "failed")}), source=10)
    with Pipeline(config) as running:
        assert list(running) == sums(10)
        (restart,) = running.report().restarts
    assert restart.item == "3"
    assert f"out of step: rank {1 - rank} did not return within 5 s after the error of rank {rank}: " in restart.cause
    assert "ValueError: no layer for 3" in restart.cause


@pytest.mark.parametrize("joins", [False, True])
def test_a_rank_that_cannot_be_built(joins):
    config = pipeline(grouped("Unbuildable", with_={"joins": joins}), source=10)
    message = "stage unbuildable, worker 0: cannot be built: rank 1: OSError: no weights for this rank"
    with pytest.raises(RunError, match=message) as caught:
        outputs(config)
    assert isinstance(caught.value, OSError)


def test_a_stage_that_yields_is_refused():
    with pytest.raises(RunError, match="a stage with `group` cannot yield"):
        outputs(pipeline(grouped("yields", module=RANKS), source=3))


# ------------------------------------------------------------------ deaths


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_is_killed_in_a_call_is_the_death_of_the_worker(rank, tmp_path):
    config = pipeline(
        grouped("Killed", group=3, with_={"at": 4, "rank": rank, "mark": str(tmp_path / "killed")}), source=12
    )
    with Pipeline(config) as running:
        assert list(running) == sums(12, group=3)
        report = running.report()
    (restart,) = report.restarts
    assert restart.item == "4"
    who = f"ended because rank {rank} of its group was killed" if rank else "was killed"
    assert f"{who} by SIGKILL, by another process" in restart.cause
    assert report.stages[1].crashes == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_any_rank_may_be_killed_from_outside(rank):
    config = pipeline(grouped("Summed", workers=2), source=400, max_restarts=50)
    found = []
    with Pipeline(config) as running:
        workers, restarts = running._run._supervisor.workers, running._run._supervisor.recovery.restarts
        for index, item in enumerate(running):
            found.append(item)
            if index in {50, 150, 250}:
                worker = workers[1 + index // 100 % 2]
                until(lambda worker=worker: worker.is_ready)
                (follower,) = psutil.Process(worker.pid).children()
                os.kill(follower.pid if rank else worker.pid, signal.SIGKILL)
                until(lambda count=1 + index // 100: len(restarts) == count)
    assert found == sums(400)


def test_an_item_that_kills_a_rank_each_time_is_poison():
    config = pipeline(grouped("Killed", with_={"at": 4, "rank": 1}, on_error="skip"), source=8)
    with Pipeline(config) as running:
        assert list(running) == [each for each in sums(8) if each[0] != 4]
        report = running.report()
    assert report.dead_letters[0].item == "4"
    assert "rank 1 of its group was killed by SIGKILL" in report.dead_letters[0].error


def test_a_fault_in_native_code_of_a_rank_is_not_tried_again():
    config = pipeline(grouped("Killed", with_={"at": 4, "rank": 1, "number": int(signal.SIGSEGV)}), source=8)
    with pytest.raises(RunError, match=r"item 4 .*ended because rank 1 of its group was killed by SIGSEGV") as caught:
        outputs(config)
    assert "grouped_stages.py" in caught.value.trace


def test_a_rank_that_exits_is_named():
    with pytest.raises(RunError, match="rank 1 of its group exited unexpectedly with exit code 3"):
        outputs(pipeline(grouped("exits", module=RANKS, retries=0), source=3))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_timeout_kills_all_ranks(rank, tmp_path):
    config = pipeline(
        grouped("Hanging", with_={"at": 4, "rank": rank, "mark": str(tmp_path / "hung")}, timeout="1s"), source=8
    )
    with Pipeline(config) as running:
        assert list(running) == sums(8)
        (restart,) = running.report().restarts
    assert "exceeded its `timeout` of 1.0 s and was killed" in restart.cause


# ------------------------------------------------------------------ the end


def run_and_kill(config, ends):
    with Pipeline(config) as running:
        until_ready(running)
        for index, _ in enumerate(running):
            if index == 20 and ends == "break":
                break
            if index == 20 and ends == "kill":
                kill(running, 1)
                until_ready(running)


@pytest.mark.parametrize("ends", ["whole", "break", "kill"])
def test_nothing_is_left(ends, tmp_path):
    leftovers = Leftovers("groups")
    run_and_kill(pipeline(grouped("Recorded", workers=2, with_={"folder": str(tmp_path)}), source=40), ends)
    assert not leftovers.found()
    ranks = [path.read_text().split() for path in tmp_path.iterdir()]
    assert sorted(int(rank) for rank, *_ in ranks) == ([0, 0, 0, 1, 1, 1] if ends == "kill" else [0, 0, 1, 1])
    assert len({port for *_, port in ranks}) == len(ranks) // 2, "each group has a port of its own"
    for *_, port in ranks:
        with socket.socket() as caller:
            assert caller.connect_ex(("127.0.0.1", int(port))), "a rank still listens"


def test_followers_die_with_a_caller_that_is_killed(tmp_path):
    script = (
        "from stagepipe import Pipeline\n"
        "from tests.support.pipelines import pipeline, stage\n"
        f"work = stage('{RANKS}.Marked', group=2, with_={{'folder': {str(tmp_path)!r}}})\n"
        "config = pipeline(work, source=10**9)\n"
        "for _ in Pipeline(config): pass\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    try:
        until(lambda: len(list(tmp_path.iterdir())) == 2)
    finally:
        process.kill()
        process.wait()
    for path in tmp_path.iterdir():
        until(lambda pid=int(path.name): not psutil.pid_exists(pid) or not is_alive(psutil.Process(pid)))


def test_threads_are_those_of_each_rank(tmp_path):
    config = pipeline(grouped("Recorded", threads=2, with_={"folder": str(tmp_path)}), source=10)
    assert outputs(config) == sums(10)
    assert [path.read_text().split()[1] for path in tmp_path.iterdir()] == ["2", "2"]


def test_the_cpu_time_of_all_ranks_counts():
    with Pipeline(pipeline(grouped("burns", module=RANKS, group=3), source=10)) as running:
        list(running)
        stage_record = running.report().stages[1]
    assert stage_record.cpu_ns > 2 * 10 * 50_000_000, "that of rank 0 alone is half of it"
