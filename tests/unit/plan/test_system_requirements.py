"""A system limit that is too low for a plan is reported with its name, the need and the hint."""

import fcntl
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stagepipe import Pipeline
from stagepipe.calibration import round_trip
from stagepipe.calibration.measurement import measure_curves
from stagepipe.config import load
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine, SystemLimits
from stagepipe.plan import count_slots_that_fit, make_plan, system_requirements
from stagepipe.plan.system_requirements import count_required_tasks, find_cpu_warnings, find_shortages, limit_slots
from stagepipe.spec import WorkerRange
from stagepipe.transport import PipeEnds, make_packet_pipe
from tests.support.paths import ROOT
from tests.support.pipelines import pipeline, stage

COMMAND = Path(sys.executable).parent / "stagepipe"
LARGE = Machine(2, 64 << 30)
GIB = 1 << 30
pytestmark = pytest.mark.timeout(90)


def plan_of(stages: int, **keys: object):
    config = pipeline(*(stage("same", name=f"s{number}") for number in range(stages)), **keys)
    return make_plan(load(config), LARGE, CostCurves.from_points((1, 2), (1, 1), (1, 1)))


def test_sixty_four_stages_fit_1024_descriptors():
    assert list(find_shortages(plan_of(64), SystemLimits(max_memory_bytes=64 * GIB, max_fds=1024, free_fds=1000))) == []


@pytest.mark.parametrize("workers,is_remarked", [(2, False), (3, True), ("auto", False)])
def test_more_workers_than_cpus_are_remarked(workers, is_remarked):
    warnings = list(find_cpu_warnings(load(pipeline(stage("same", workers=workers))), cpus=2))
    message = "stage same has 3 workers on 2 CPUs: more workers than CPUs help only a stage that waits for "
    assert warnings == ([f"{message}files, a network or a GPU"] if is_remarked else [])


@pytest.mark.parametrize(
    "limits, words",
    [
        (
            SystemLimits(max_memory_bytes=GIB, max_fds=1024, free_fds=700),
            ("65 workers need", "only 700 of 1024 are free", "`ulimit -n`", "2048"),
        ),
        (
            SystemLimits(max_memory_bytes=GIB, free_tasks_by_limit=(("`ulimit -u` is 300", 200),)),
            ("266 processes and threads", "`ulimit -u` is 300"),
        ),
        (
            SystemLimits(max_memory_bytes=GIB, max_address_space_bytes=GIB, free_address_space_bytes=GIB),
            ("`ulimit -v`", "2 workers", "`memory=78MiB`"),
        ),
        (SystemLimits(max_memory_bytes=GIB, max_file_bytes=1 << 20), ("47 GB", "may have only 1.0 MB", "`ulimit -f`")),
    ],
)
def test_a_shortage_names_the_limit_the_need_and_the_hint(limits, words):
    (message,) = find_shortages(plan_of(64, memory=GIB), limits)
    assert [word for word in words if word not in message] == [], message


def test_the_suggested_memory_fits():
    plan = plan_of(3, memory=GIB)
    for limits in (
        SystemLimits(max_memory_bytes=GIB, max_address_space_bytes=GIB, free_address_space_bytes=GIB),
        SystemLimits(max_memory_bytes=GIB, max_file_bytes=2 * GIB),
    ):
        (message,) = find_shortages(plan, limits)
        suggested_bytes = int(message.rpartition("`memory=")[2].partition("MiB")[0]) << 20
        assert list(find_shortages(replace(plan, memory_bytes=suggested_bytes), limits)) == []


def with_range(stages: int, maximum: int):
    """A plan in which each stage has two workers, and may have `maximum`."""
    plan = plan_of(stages, memory=GIB)
    source, *others = plan.processes
    moving = (replace(process, workers=2, worker_bounds=WorkerRange(1, maximum)) for process in others)
    return replace(plan, processes=(source, *moving))


def test_slots_need_descriptors_and_address_space_and_only_workers_are_processes():
    moving, fixed = with_range(4, 50), plan_of(4, memory=GIB)
    all_started = replace(
        moving, processes=tuple(replace(each, workers=each.slot_count, worker_bounds=None) for each in moving.processes)
    )
    none_left = SystemLimits(max_memory_bytes=GIB, max_fds=1024, free_fds=0)
    assert list(find_shortages(moving, none_left)) == list(find_shortages(all_started, none_left))
    no_space = SystemLimits(max_memory_bytes=GIB, max_address_space_bytes=GIB, free_address_space_bytes=GIB)
    assert list(find_shortages(moving, no_space)) == list(find_shortages(all_started, no_space))
    assert count_required_tasks(moving) == count_required_tasks(fixed) + 4 * 4


@pytest.mark.parametrize("free_fds, slots", [(10_000, 50), (1000, 23), (200, 3), (50, 1)])
def test_the_slots_of_all_processes_fit_the_descriptors_that_are_free(free_fds, slots, monkeypatch):
    limits = SystemLimits(max_memory_bytes=GIB, max_fds=10_000, free_fds=free_fds)
    monkeypatch.setattr(system_requirements, "read_system_limits", lambda _: limits)
    plan = with_range(4, 50)
    assert count_slots_that_fit(plan) == slots
    if slots > 1:
        assert list(find_shortages(limit_slots(plan, slots), limits)) == []
    if 1 < slots < 50:
        assert list(find_shortages(limit_slots(plan, slots + 1), limits)) != []


def test_no_limit_takes_the_slot_of_a_worker_that_runs_at_the_start():
    assert [process.slot_count for process in limit_slots(with_range(1, 50), 1).processes] == [1, 2]


def test_a_run_opens_no_more_descriptors_than_it_asks_for():
    fds = Path("/proc/self/fd")
    before = len(list(fds.iterdir()))
    with Pipeline(pipeline(*(stage("same", name=f"s{index}") for index in range(4)), source=200, window=16)) as running:
        plan = running.make_plan()
        next(iter(running))
        opened = len(list(fds.iterdir())) - before
    assert list(find_shortages(plan, SystemLimits(max_memory_bytes=64 * GIB, max_fds=1024, free_fds=opened - 1))) != []
    (message,) = find_shortages(plan, SystemLimits(max_memory_bytes=64 * GIB, max_fds=1024, free_fds=0))
    assert opened <= int(message.partition(" file descriptors")[0].rpartition(" ")[2])


def limited(which: int, value: int, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command with one resource limit set."""
    return subprocess.run(
        [str(COMMAND), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(which, (value, value)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def folder(tmp_path):
    stages = "".join(f"  - {{name: s{number}, uses: tests.support.stages.same}}\n" for number in range(20))
    text = "name: c\nsource: {uses: stagepipe.sources.numbers, with: {count: 4}}\nmemory: 64MiB\nstages:\n"
    (tmp_path / "c.yaml").write_text(text + stages)
    return tmp_path


@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_each_command_reports_a_low_limit_before_anything_starts(command, folder):
    done = limited(resource.RLIMIT_NOFILE, 200, command, "c.yaml", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("the run cannot start: 21 workers need 293 file descriptors, but only ")
    assert done.stderr.count("\n") == 1


def test_the_file_size_limit_applies_to_in_memory_files(folder):
    done = limited(resource.RLIMIT_FSIZE, 1 << 29, "validate", "c.yaml", folder=folder)
    assert done.returncode == 2
    assert "(`ulimit -f`)" in done.stderr


def test_more_memory_than_the_machine_has_is_a_warning(folder):
    done = limited(resource.RLIMIT_CORE, 0, "validate", "c.yaml", "memory=512TiB", folder=folder)
    assert done.returncode == 0
    assert "note: `memory` is 563 TB, but the machine or the cgroup allows" in done.stdout


def test_a_machine_with_few_pages_for_pipes_can_be_measured(monkeypatch):
    """If a user has no pipe pages left, a pipe holds two packets. The two sides must not wait for room at once."""

    def make_small_pipe(_: int) -> PipeEnds:
        ends = make_packet_pipe(16)
        fcntl.fcntl(ends.write_fd, fcntl.F_SETPIPE_SZ, 2 * 4096)
        return replace(ends, capacity_packets=2)

    monkeypatch.setattr(round_trip, "make_packet_pipe", make_small_pipe)
    assert measure_curves(rounds=2).pipe(256 << 10) > 0
