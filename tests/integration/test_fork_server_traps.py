"""What goes wrong with forked workers if nothing is done about it. Each trap, and below it the test that holds it.

- two children draw the same numbers (NumPy, torch):
    test_fork_server: forked_workers_do_not_draw_the_same_numbers
- a preloaded module, or a library of the server, starts threads:
    test_fork_server: a_module_that_does_not_stand_a_fork_is_not_preloaded; the_server_has_one_thread
- threads of OpenMP, torch and BLAS after a fork:
    test_fork_server: the_threads_of_libraries_are_those_of_the_stage
- a preloaded module asks for CUDA, starts it, or opens a GPU:
    a_module_may_ask_for_cuda; a_module_that_starts_cuda_is_not_preloaded; unit test_server
- a variable that is read at load is in `env`, or changed by the caller:
    test_fork_server: a_variable_that_is_read_at_load; a_changed_variable_gets_another_server
- other variables, folder, umask, limits, CPUs, signals:
    test_fork_server: a_forked_worker_has_from_the_caller_what_a_spawned_one_has
- niceness, oom score, cgroup:
    a_changed_niceness_reaches_the_next_worker; a_changed_cgroup
- the exit status of a process that is no child; its number:
    unit test_server: an_exited_worker_keeps_its_number; test_worker_deaths
- the server dies:
    test_fork_server: a_killed_server_ends_no_worker_and_another_one_follows
- more than 253 descriptors, or than the limit allows:
    unit test_descriptors
- descriptors that stay open in the server:
    the_server_keeps_no_descriptor_of_a_run
- the caller dies before the child is bound to it:
    a_child_of_a_dead_caller_exits_before_it_does_anything
- the thread that started the workers ends:
    workers_outlive_the_thread_that_started_them
- Ctrl-C reaches the server:
    ctrl_c_does_not_reach_the_server
- the server outlives its caller, or serves a fork of it:
    test_fork_server: the_server_ends_with_its_caller; test_forked_children
- code has changed, or is new:
    test_fork_server: a_preloaded_package_of_which_a_file_has_changed; a_module_written_after_the_server_looked
- the user's code is imported in the server:
    a_module_is_imported_by_each_worker_unless_it_is_preloaded
"""

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from stagepipe import Pipeline
from tests.support.kills import until
from tests.support.paths import ROOT
from tests.support.pipelines import outputs, pipeline, stage
from tests.support.processes import list_fork_servers, remove_cgroup

pytestmark = pytest.mark.timeout(120)
START = "tests.support.start_stages"


def run(*stages, items=1, **keys):
    return outputs(pipeline(*stages, source=items, **{"start": "fork", **keys}))


def run_script(code: str) -> str:
    """Run code in a process of its own, because it changes what the process cannot change back."""
    prelude = "import os\nfrom tests.integration.test_fork_server_traps import *\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tell_attributes(start: str = "fork") -> tuple:
    (told,) = run(stage(f"{START}.tell_attributes"), start=start)
    return told


def server_of_a_run() -> psutil.Process:
    ((_, _, server),) = run(stage(f"{START}.tell_parent"))
    return psutil.Process(server)


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_server_has_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    server = server_of_a_run()
    assert server.num_threads() == 1
    assert server.environ()["OMP_NUM_THREADS"] == "1"
    ((described),) = run(stage(f"{START}.describe_process", threads=2))
    assert described["environment"]["OMP_NUM_THREADS"] == "2"


CUDA_MODULE = """
import mmap, os
file = open(os.path.join(os.path.dirname(__file__), "libcuda.so.1"), "rb")
driver = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
"""


@pytest.mark.usefixtures("own_servers")
def test_a_module_that_starts_cuda_is_not_preloaded(user_folder, caplog):
    caplog.set_level(logging.INFO, "stagepipe")
    (user_folder / "libcuda.so.1").write_bytes(b"not the driver")
    (user_folder / "starts_cuda.py").write_text(CUDA_MODULE)
    ((_, _, parent),) = run(stage(f"{START}.tell_parent"), preload=["starts_cuda"])
    assert parent == os.getpid()
    assert "a module that it imports starts CUDA" in caplog.text


@pytest.mark.usefixtures("own_servers")
def test_a_module_may_ask_for_cuda(user_folder):
    code = "import os\nASKED = os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK')\ndef tell(x):\n    return ASKED, "
    code += "os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK')\n"
    (user_folder / "asks_for_cuda.py").write_text(code)
    assert run(stage("asks_for_cuda.tell"), preload=["asks_for_cuda"]) == [("1", None)]


@pytest.mark.usefixtures("own_servers")
def test_a_changed_variable_gets_another_server(monkeypatch):
    first = server_of_a_run()
    assert server_of_a_run() == first
    monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
    second = server_of_a_run()
    assert second != first
    assert second.environ()["MALLOC_ARENA_MAX"] == "3"


@pytest.mark.parametrize("change", ["os.nice(3)", "open('/proc/self/oom_score_adj', 'w').write('500')"])
def test_a_changed_niceness_reaches_the_next_worker(change):
    told = run_script(
        f"before = tell_attributes()\n{change}\nafter, spawned = tell_attributes(), tell_attributes('spawn')\n"
        "print(after[:3] == spawned[:3] != before[:3], after[3] not in {before[3], os.getpid()})"
    )
    assert told == "True True\n"


@pytest.fixture
def cgroup():
    """A new cgroup below one of this process's."""
    own = {line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().split()}
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for folder in (Path(mount[1] + path) for mount in mounts if mount[2] in {"cgroup2", "cgroup"} for path in own):
        made = folder / f"stagepipe-test-{os.getpid()}"
        if (folder / "cgroup.procs").exists() and "cpuset" not in str(folder):  # that one needs CPUs first
            try:
                made.mkdir()
            except OSError:
                continue
            yield made
            remove_cgroup(made)
            return
    pytest.skip("this process may not make a cgroup")


def test_a_changed_cgroup_reaches_the_next_worker(cgroup):
    told = run_script(
        f"before = tell_attributes()\nopen('{cgroup}/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "print(before[2] != tell_attributes()[2])"
    )
    assert told == "True\n"


def test_the_server_keeps_no_descriptor_of_a_run():
    server = server_of_a_run()
    fds = server.num_fds()
    run(*[stage("same", workers=2)] * 4, items=10)
    assert server_of_a_run() == server
    until(lambda: server.num_fds() == fds)


ORPHAN = """
import os
from stagepipe.runtime.fork_server.messages import read_caller_attributes
from stagepipe.runtime.fork_server.server import become_worker
from stagepipe.runtime.fork_server.messages import ForkRequest
lifetime, write_end = os.pipe2(os.O_NONBLOCK)
os.close(write_end)  # the caller has died
fds = [lifetime, *(os.open("/dev/null", os.O_RDWR) for _ in range(3)), os.open(".", os.O_RDONLY)]
request = ForkRequest(
    fds=fds, spec_fd=fds[1], crash_log_fd=fds[2], lifetime_fd=lifetime, output_fd=fds[3], folder_fd=fds[4],
    environment=[], thread_count=1, attributes=read_caller_attributes(),
)
become_worker(request, dict(zip(fds, fds)))
os._exit(7)
"""


def test_a_child_of_a_dead_caller_exits_before_it_does_anything():
    done = subprocess.run([sys.executable, "-c", ORPHAN], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 1


def test_workers_outlive_the_thread_that_started_them():
    running = Pipeline(pipeline(stage("same", workers=2), source=500))
    starter = threading.Thread(target=running.start)
    starter.start()
    starter.join()
    with running:
        assert list(running) == list(range(500))
        assert not running.report().restarts


def test_ctrl_c_does_not_reach_the_server():
    server = server_of_a_run()
    assert os.getpgid(server.pid) == server.pid
    server.send_signal(signal.SIGINT)
    assert server_of_a_run() == server
    assert server.pid in list_fork_servers()


def test_signals_of_slurm_to_all_processes_of_a_step_stop_no_worker():
    """`sbatch --signal=USR1@120` reaches the caller, the fork server and the workers."""
    received = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        with Pipeline({"source": {"uses": range(300)}, "stages": [{"name": "take", "uses": "math.floor"}]}) as running:
            items = iter(running)
            first = next(items)
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                process.send_signal(signal.SIGUSR1)
            assert [first, *items] == list(range(300))
            assert not running.report().restarts
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert received


@pytest.mark.usefixtures("own_servers")
def test_a_module_written_after_the_server_looked_is_found(user_folder):
    (user_folder / "old_ops.py").write_text("def same(x):\n    return x\n")
    times = user_folder.stat()
    assert run(stage("old_ops.same"), preload=["old_ops"]) == [0]
    (user_folder / "new_ops.py").write_text("def same(x):\n    return x\n")
    importlib.invalidate_caches()  # the caller's, as Python asks of a program that writes modules
    os.utime(user_folder, ns=(times.st_atime_ns, times.st_mtime_ns))  # as on a file system with coarse times
    assert run(stage("new_ops.same"), preload=["old_ops"]) == [0]


@pytest.mark.usefixtures("own_servers")
def test_a_module_is_imported_by_each_worker_unless_it_is_preloaded():
    assert run(stage(f"{START}.tell_importer")) == [True]
    assert run(stage(f"{START}.tell_importer"), preload=[START]) == [False]
