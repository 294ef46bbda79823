import os
import time
from pathlib import Path

import psutil
import pytest

from stagepipe.runtime.fork_server.server import _read_exit_code, find_unfit_reason


@pytest.fixture
def process(tmp_path):
    """A folder like that of a process in /proc which is fit to fork."""
    (tmp_path / "task" / "1").mkdir(parents=True)
    (tmp_path / "fd").mkdir()
    (tmp_path / "fd" / "0").symlink_to("/dev/null")
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n")
    return tmp_path


def test_this_machine_lists_a_process_as_the_folder_does(process):
    assert find_unfit_reason(process) == ""
    assert {entry.name for entry in process.iterdir()} <= {entry.name for entry in Path("/proc/self").iterdir()}


def test_a_second_thread_makes_a_process_unfit(process):
    (process / "task" / "2").mkdir()
    assert "starts threads" in find_unfit_reason(process)


def test_the_cuda_driver_makes_a_process_unfit(process):
    (process / "maps").write_text("7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/x86_64-linux-gnu/libcuda.so.550.54\n")
    assert "starts CUDA" in find_unfit_reason(process)


@pytest.mark.parametrize("device", ["nvidia0", "nvidiactl", "nvidia-uvm"])
def test_an_open_gpu_makes_a_process_unfit(process, device):
    (process / "fd" / "9").symlink_to(f"/dev/{device}")
    assert "starts CUDA" in find_unfit_reason(process)


def test_an_exited_worker_keeps_its_number_until_it_is_reaped():
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    deadline = time.monotonic() + 10
    while _read_exit_code(pid) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert (_read_exit_code(pid), _read_exit_code(pid)) == (3, 3)
    assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert os.waitpid(pid, 0)[0] == pid
