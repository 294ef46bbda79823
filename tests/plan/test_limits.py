"""A limit of the system that is too low for a plan is told with its name, what is needed, and the mend."""

import fcntl
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stagepipe import Pipeline
from stagepipe.config import load
from stagepipe.plan import Machine, make_plan
from stagepipe.plan.calibration import measure, trip
from stagepipe.plan.curves import Curves
from stagepipe.plan.limits import Allowed, shortages
from stagepipe.transport import PipeEnds, make_pipe
from tests.zoo.pipelines import pipeline, stage

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "stagepipe"
LARGE = Machine(2, 64 << 30)
GIB = 1 << 30
pytestmark = pytest.mark.timeout(90)


def plan_of(stages: int, **keys: object):
    config = pipeline(*(stage("same", name=f"s{number}") for number in range(stages)), **keys)
    return make_plan(load(config), LARGE, Curves.simple((1, 2), (1, 1), (1, 1)))


def test_sixty_four_stages_fit_1024_descriptors():
    assert list(shortages(plan_of(64), Allowed(64 * GIB, fds=1024, fds_left=1000))) == []


@pytest.mark.parametrize(
    "allowed, words",
    [
        (Allowed(GIB, fds=1024, fds_left=700), ("65 workers need", "700 are left of 1024", "`ulimit -n`", "2048")),
        (Allowed(GIB, tasks_left=(("`ulimit -u` is 300", 200),)), ("266 processes and threads", "`ulimit -u` is 300")),
        (Allowed(GIB, address_bytes=GIB, address_left_bytes=GIB), ("`ulimit -v`", "2 workers", "`memory: 78MiB`")),
        (Allowed(GIB, file_bytes=1 << 20), ("47 GB", "may have 1.0 MB", "`ulimit -f`")),
    ],
)
def test_what_is_short_is_named_with_what_is_needed_and_the_mend(allowed, words):
    (said,) = shortages(plan_of(64, memory=GIB), allowed)
    assert [word for word in words if word not in said] == [], said


def test_a_smaller_memory_that_is_advised_does_fit():
    plan = plan_of(3, memory=GIB)
    for allowed in (Allowed(GIB, address_bytes=GIB, address_left_bytes=GIB), Allowed(GIB, file_bytes=2 * GIB)):
        (said,) = shortages(plan, allowed)
        advised = int(said.rpartition("`memory: ")[2].partition("MiB")[0]) << 20
        assert list(shortages(replace(plan, memory_bytes=advised), allowed)) == []


def test_a_run_takes_no_more_descriptors_than_are_asked_for():
    fds = Path("/proc/self/fd")
    before = len(list(fds.iterdir()))
    with Pipeline(pipeline(*(stage("same", name=f"s{at}") for at in range(4)), source=200, window=16)) as running:
        plan = running.plan
        next(iter(running))
        took = len(list(fds.iterdir())) - before
    assert list(shortages(plan, Allowed(64 * GIB, fds=1024, fds_left=took - 1))) != []
    (said,) = shortages(plan, Allowed(64 * GIB, fds=1024, fds_left=0))
    assert took <= int(said.partition(" file descriptors")[0].rpartition(" ")[2])


def limited(which: int, value: int, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command under a limit of its own."""
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
    stages = "".join(f"  - {{name: s{number}, uses: tests.zoo.stages.same}}\n" for number in range(20))
    text = "name: c\nsource: {uses: stagepipe.sources.numbers, with: {count: 4}}\nmemory: 64MiB\nstages:\n"
    (tmp_path / "c.yaml").write_text(text + stages)
    return tmp_path


@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_each_command_tells_a_short_limit_before_anything_starts(command, folder):
    done = limited(resource.RLIMIT_NOFILE, 200, command, "c.yaml", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("the run cannot start: 21 workers need 293 file descriptors, and ")
    assert done.stderr.count("\n") == 1


def test_a_limit_on_the_size_of_files_binds_files_in_memory_too(folder):
    done = limited(resource.RLIMIT_FSIZE, 1 << 29, "validate", "c.yaml", folder=folder)
    assert done.returncode == 2
    assert "(`ulimit -f`)" in done.stderr


def test_more_memory_than_the_machine_has_is_told_and_tried(folder):
    done = limited(resource.RLIMIT_CORE, 0, "validate", "c.yaml", "memory=512TiB", folder=folder)
    assert done.returncode == 0
    assert "note: `memory` is 563 TB, but the machine or the cgroup allows" in done.stdout


def test_a_machine_with_few_pages_for_pipes_is_measured_all_the_same(monkeypatch):
    """Where a user's pipe pages are used up, a pipe holds two packets: both sides must not wait for room at once."""

    def small(_: int) -> PipeEnds:
        ends = make_pipe(16)
        fcntl.fcntl(ends.write_fd, fcntl.F_SETPIPE_SZ, 2 * 4096)
        return replace(ends, capacity=2)

    monkeypatch.setattr(trip, "make_pipe", small)
    assert measure(rounds=2).pipe(256 << 10) > 0
