"""What a worker process says of its end."""

import subprocess
import sys

import psutil

from stagepipe.runtime.supervisor.workers import WorkerProcess


def make_worker(process: "subprocess.Popen[bytes]") -> WorkerProcess:
    """A worker around a process that this test has started, as a whole plan would be needed to start a real one."""
    worker = WorkerProcess.__new__(WorkerProcess)
    worker.timeout_reason = ""
    worker.rss_bytes = 0
    worker._popen = process
    worker._process = psutil.Process(process.pid)
    return worker


def test_a_killed_worker_names_its_memory_if_that_was_sampled():
    command = [
        sys.executable,
        "-c",
        "print('up', flush=True); kept = b'1' * (64 << 20); print('big', flush=True); input()",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        worker = make_worker(process)
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == [b"up\n", b"big\n"]
        worker.sample_memory()
        assert worker.rss_bytes > 64 << 20
        process.kill()
        process.wait()
        worker.sample_memory()
    sampled = worker.describe_exit(has_oom_kill=True)
    assert sampled.startswith("was killed by the kernel because memory ran out (SIGKILL); it used ")
    assert sampled.endswith(" MB of memory when last sampled")
    worker.rss_bytes = 0
    assert worker.describe_exit(has_oom_kill=True) == "was killed by the kernel because memory ran out (SIGKILL)"
