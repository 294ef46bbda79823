"""Workers that the fork server starts are as those with an interpreter of their own, only sooner."""

import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stagepipe import Pipeline
from stagepipe.runtime.fork_server.client import ForkServer
from tests.support.kills import until
from tests.support.paths import ROOT
from tests.support.pipelines import outputs, pipeline, stage

pytestmark = pytest.mark.timeout(120)
START = "tests.support.start_stages"
STARTS = ("fork", "spawn")


def run(*stages, start="fork", items=1, **keys):
    return outputs(pipeline(*stages, source=items, start=start, **keys))


def test_a_forked_worker_is_the_child_of_the_server_and_a_spawned_one_of_the_caller():
    ((_, pid, server),) = run(stage(f"{START}.tell_parent"))
    assert os.getpid() not in {pid, server}
    assert "worker_server" in " ".join(psutil.Process(server).cmdline())
    ((_, _, parent),) = run(stage(f"{START}.tell_parent"), start="spawn")
    assert parent == os.getpid()


def test_the_garbage_collector_which_is_off_while_the_server_imports_works_in_its_workers():
    assert run(stage(f"{START}.tell_collector")) == [True]


def test_the_sources_are_imported_once_in_the_server_and_not_by_each_worker():
    assert run(stage(f"{START}.has_imported", with_={"name": "stagepipe.sources"})) == [True]


def test_forked_and_spawned_workers_get_the_same_state_from_the_caller(monkeypatch, tmp_path):
    run(stage("same"))  # the server runs before anything changes
    monkeypatch.setenv("SET_LATER", "yes")
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)
    old_umask, old_cpus = os.umask(0o027), os.sched_getaffinity(0)
    old_core, old_files = resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE)
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        os.sched_setaffinity(0, {min(old_cpus)})
        resource.setrlimit(resource.RLIMIT_CORE, (0, old_core[1]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (old_files[0] - 1, old_files[1]))
        entry = stage(f"{START}.describe_process", env={"MINE": "1"})
        (forked,), (spawned,) = (run(entry, start=start) for start in STARTS)
    finally:
        os.umask(old_umask)
        os.sched_setaffinity(0, old_cpus)
        resource.setrlimit(resource.RLIMIT_CORE, old_core)
        resource.setrlimit(resource.RLIMIT_NOFILE, old_files)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    assert forked["environment"]["SET_LATER"] == "yes"
    assert "HOME" not in forked["environment"]
    assert (forked["umask"], forked["folder"], forked["cpus"]) == ("0027", str(tmp_path), [min(old_cpus)])
    assert forked["own_group"]
    assert forked == spawned


@pytest.mark.parametrize("draws, preload", [("Draws", []), ("TorchDraws", ["torch"])])
def test_forked_workers_do_not_draw_the_same_numbers(draws, preload):
    rows = run(stage(f"{START}.{draws}", workers=3, reseed=False), items=60, preload=preload)
    drawn = {row[0]: row for row in rows}
    assert len(drawn) > 1
    for place in range(1, len(rows[0])):
        assert len({row[place] for row in drawn.values()}) == len(drawn), place


@pytest.mark.parametrize("start", STARTS)
def test_the_threads_of_libraries_are_those_of_the_stage(start):
    entries = stage(f"{START}.count_torch_threads", threads=2), stage("same")
    assert run(*entries, start=start, preload=["torch"]) == [(2, 64.0)]
    counts = run(stage(f"{START}.count_blas_threads", threads=2), start=start)
    assert counts == [(200, [2] * len(counts[0][1]))]
    assert counts[0][1]


@pytest.mark.parametrize(
    "keys, reason",
    [
        ({"env": {"MALLOC_ARENA_MAX": "2"}}, "`env` sets MALLOC_ARENA_MAX, which is read only when a process starts"),
        ({"env": {"PYTHONHASHSEED": "7"}}, "`env` sets PYTHONHASHSEED"),
        ({"env": {"OMP_NUM_THREADS": "2"}}, "`env` sets OMP_NUM_THREADS"),
    ],
)
def test_a_variable_that_is_read_at_load_needs_a_new_interpreter(keys, reason, caplog):
    caplog.set_level(logging.INFO, "stagepipe")
    ((_, _, parent),) = run({**stage(f"{START}.tell_parent"), **keys})
    assert parent == os.getpid()
    assert reason in caplog.text


@pytest.mark.usefixtures("own_servers")
@pytest.mark.parametrize(
    "code, reason",
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n", "threads"),
        ("raise ValueError('not today')\n", "importing `{name}` failed: ValueError: not today"),
        ("import os\nos._exit(3)\n", "the fork server died while it imported"),
    ],
)
def test_a_module_that_does_not_stand_a_fork_is_not_preloaded(code, reason, caplog, tmp_path, monkeypatch):
    caplog.set_level(logging.INFO, "stagepipe")
    name = f"unfit_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    ((_, _, parent),) = run(stage(f"{START}.tell_parent"), preload=[name])
    assert parent == os.getpid()
    assert reason.format(name=name) in caplog.text


@pytest.mark.usefixtures("own_servers")
def test_a_preloaded_package_of_which_a_file_has_changed_is_imported_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "changing_ops"
    package.mkdir()
    (package / "__init__.py").write_text("from changing_ops.layers import tell\n")
    seen = []
    for number, text in enumerate(("return 'old'", "return 'new'")):
        code = f"import os\nIMPORTED_BY = os.getpid()\ndef tell(x):\n    {text}, IMPORTED_BY == os.getpid()\n"
        (package / "layers.py").write_text(code)
        os.utime(package / "layers.py", (number, number))  # bytecode knows seconds
        seen += run(stage("changing_ops.tell"), preload=["changing_ops"])
    assert seen == [("old", False), ("new", False)]


@pytest.mark.usefixtures("own_servers")
def test_a_request_that_is_interrupted_does_not_confuse_the_next(monkeypatch):
    run(stage("same"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ForkServer, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(stage("same"))
    assert run(stage("same"), items=3) == [0, 1, 2]


def test_a_caller_that_ignores_its_children_gets_exit_statuses():
    code = (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from tests.support.pipelines import *\n"
        "outputs(pipeline(stage('tests.support.bad_stages.kills_itself', name='bad'), source=9))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "killed by SIGKILL" in done.stderr


def is_live_server(pid):
    try:
        return bool(pid) and "worker_server" in " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:  # the killed one, until it is reaped
        return False


@pytest.mark.usefixtures("own_servers")
def test_a_killed_server_ends_no_worker_and_another_one_follows():
    config = pipeline(stage(f"{START}.tell_parent", workers=2), source=10_000_000, max_restarts=5)
    with Pipeline(config) as running:
        items = iter(running)
        first_item, _, server = next(items)
        psutil.Process(server).kill()
        got = [first_item, *(next(items)[0] for _ in range(2000))]
        item, pid, _ = next(items)
        got.append(item)
        psutil.Process(pid).kill()
        parents = [0]
        while not is_live_server(parents[-1]):
            item, _, parent = next(items)
            got.append(item)
            if parent != parents[-1]:
                parents.append(parent)
        restarts = running.report().restarts
    assert got == list(range(len(got)))
    assert server not in parents[2:]
    assert "ended for an unknown reason, because the fork server that started it has died" in restarts[0].cause


def test_a_caller_with_more_descriptors_than_select_takes_is_served():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    code = (
        "import os, tests.integration.test_fork_server as t\n"
        "files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1500)]\n"
        "t.test_a_forked_worker_is_the_child_of_the_server_and_a_spawned_one_of_the_caller()\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert done.returncode == 0


SCRIPT = """
import os, sys, time
import stagepipe
from tests.support.start_stages import tell_parent

with stagepipe.from_source(range(10)).map(tell_parent).open() as pipeline:
    item, pid, server = next(iter(pipeline))
    print(pid, server, flush=True)
    if sys.argv[1] == "wait":
        if os.fork() == 0:
            time.sleep(30)  # a child that has copies of all descriptors
            os._exit(0)
        time.sleep(30)
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_the_server_ends_with_its_caller(end):
    command = [sys.executable, "-c", SCRIPT, "wait" if end == "kill" else "exit"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as caller:
        assert caller.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in caller.stdout.readline().split()]
        if end == "kill":
            until(lambda: set(psutil.Process(caller.pid).children()) - set(processes))  # it has forked
            children = set(psutil.Process(caller.pid).children()) - set(processes)
            caller.kill()
        gone, alive = psutil.wait_procs(processes, timeout=10)
        if end == "kill":
            for child in children:
                child.kill()
        assert not alive
        assert len(gone) == 2
    assert Path(f"/proc/{caller.pid}").exists() is False


IN_A_NEW_PROCESS = """
import os, sys, psutil
from stagepipe import Pipeline, UsageError
from tests.support.processes import is_fork_server

def servers():
    return [child.pid for child in psutil.Process().children() if is_fork_server(child)]

def parent(pipeline):
    with pipeline:
        ((_, _, parent),) = pipeline
    return parent

def make(**keys):
    stages = [{"name": "tell", "uses": "tests.support.start_stages.tell_parent"}]
    return Pipeline({"source": {"uses": range(1)}, "stages": stages, **keys})

"""


def printed_by(code):
    command = [sys.executable, "-c", IN_A_NEW_PROCESS + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_the_server_starts_before_the_config_is_read_and_forks_the_workers():
    code = "pipeline = make()\nspare = servers()\nmake()\nassert servers() == spare\nprint(*spare, parent(pipeline))"
    server, parent = printed_by(code)
    assert server == parent


@pytest.mark.parametrize(
    "change",
    ["os.environ['LATER'] = '1'", "os.chdir('/')", "os.kill(old, 9); psutil.Process(old).wait()"],
    ids=["environment", "folder", "killed"],
)
def test_a_server_that_was_started_otherwise_is_not_used(change):
    code = f"pipeline = make()\nold = servers()[0]\n{change}\nnew = parent(pipeline)\n"
    assert printed_by(f"{code}print(new not in (old, os.getpid()), servers() == [new])") == ["True", "True"]


@pytest.mark.parametrize(
    "code",
    [
        "assert parent(make(start='spawn')) == os.getpid()",
        "Pipeline({'source': {'uses': range(3)}}, inline=True)",
        "from stagepipe import from_source\nfrom_source('stagepipe.sources.numbers').map(len).to_yaml()",
    ],
    ids=["spawn", "inline", "to_yaml"],
)
def test_no_server_is_kept_where_none_is_needed(code):
    assert printed_by(f"{code}\nprint(len(servers()))") == ["0"]
