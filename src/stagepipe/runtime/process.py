"""One worker process as its supervisor holds it: start, death and its cause, the end by steps."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic

from stagepipe.runtime.launch import Launch, write_launch
from stagepipe.runtime.resources import WorkerPlace

_STOP_S, _TERM_S, _KILL_S = 5.0, 2.0, 5.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""mallopt(3): glibc gives an array's pages back when it dies, and the next one of its size faults them in again. Stages
make arrays of the same sizes over and over: decoding JPEG files took 87 page faults an item, and a tenth more time."""


class WorkerProcess:
    """A worker that was started. Owns its pidfd, its life pipe and the memfd of its last words."""

    def __init__(self, place: WorkerPlace, launch: Launch, life_write_fd: int) -> None:
        """Start it. `life_write_fd`, taken over, stays open in this process alone, as long as the worker is to live."""
        self.place = place
        self.ready = False
        self._fds = [life_write_fd]
        try:
            self._crash_fd = self._own(os.memfd_create("stagepipe-crash", os.MFD_CLOEXEC))
            self._popen = self._spawn(launch)
            self.pid = self._popen.pid
            self.pidfd = self._own(os.pidfd_open(self.pid))
        except BaseException:
            self._close_fds()
            raise

    def _own(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def _close_fds(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def _spawn(self, launch: Launch) -> subprocess.Popen[bytes]:
        launch_fd = write_launch(launch)
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "stagepipe.worker", str(launch_fd), str(self._crash_fd)],
                pass_fds=sorted({launch_fd, self._crash_fd, *launch.fds}),
                env=_environment(launch),
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
        finally:
            os.close(launch_fd)

    @property
    def name(self) -> str:
        """`decode/1`."""
        return f"{self.place.plan.name}/{self.place.worker}"

    def poll(self) -> int | None:
        """Its exit code once it has ended."""
        return self._popen.poll()

    def cause(self) -> str:
        """Why it ended, in words."""
        code = self._popen.poll()
        if code is None:
            return "is running"
        if code >= 0:
            return f"ended by itself with exit code {code}"
        name = signal.Signals(-code).name
        if -code == signal.SIGKILL:
            return "was killed by SIGKILL: by somebody, or by the kernel because memory ran out"
        if -code == signal.SIGSEGV:
            return (
                "was killed by SIGSEGV: a fault in native code, or a write into its read-only input "
                "(if so, set `mutable: true` on the stage)"
            )
        return f"was killed by {name}"

    def last_words(self) -> str:
        """The Python stack that it left when a signal killed it, or nothing."""
        size = os.fstat(self._crash_fd).st_size
        return os.pread(self._crash_fd, min(size, 1 << 16), 0).decode(errors="replace").strip()

    def signal(self, number: int) -> None:
        """Send a signal to it and to the children that it forked."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Give back its descriptors; it has ended. What it forked and left behind is ended too."""
        self.signal(signal.SIGKILL)
        self._close_fds()


def end(workers: Iterable[WorkerProcess], *, asked: bool) -> list[str]:
    """Wait for workers that were `asked` to stop, then SIGTERM, then SIGKILL. Names those who did not go by then."""
    late: list[str] = []
    running = list(workers)
    for worker in running:
        if not worker.ready:  # it is building its stages, and hears nothing yet
            worker.signal(signal.SIGTERM)
    for number, seconds in ((None, _STOP_S), (signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
        if number is not None:
            late += [worker.name for worker in running if worker.name not in late]
            for worker in running:
                worker.signal(number)
        deadline = monotonic() + (0.0 if number is None and not asked else seconds)
        running = [worker for worker in running if not worker.wait(max(deadline - monotonic(), 0.0))]
        if not running:
            break
    return late


def _environment(launch: Launch) -> Mapping[str, str]:
    threads = str(launch.plan.threads or 1)
    package_parent = str(Path(__file__).parents[2])
    inherited = os.environ.get("PYTHONPATH")
    path = package_parent if not inherited else f"{inherited}{os.pathsep}{package_parent}"
    return {
        **_HEAP,
        **os.environ,
        **dict.fromkeys(_THREAD_VARIABLES, threads),
        "PYTHONPATH": path,
        **({} if launch.plan.devices is None else {"CUDA_VISIBLE_DEVICES": launch.plan.devices[launch.worker]}),
        **launch.plan.env,
    }
