"""One worker process as its supervisor holds it: start, death and its cause, the end by steps."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic

from stagepipe.core.units import format_bytes
from stagepipe.runtime.failures import stacks_of_users
from stagepipe.runtime.launch import STACKS_SIGNAL, Launch, write_launch
from stagepipe.runtime.life import die_together
from stagepipe.runtime.output import Output
from stagepipe.runtime.resources import WorkerPlace

_STOP_S, _TERM_S, _KILL_S = 5.0, 2.0, 5.0
_STACKS_S = 0.3
_NAMES = {number.value: number.name for number in signal.Signals}
_log = logging.getLogger("stagepipe")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

_HEAP = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
"""mallopt(3): glibc gives an array's pages back when it dies, and the next one of its size faults them in again. Stages
make arrays of the same sizes over and over: decoding JPEG files took 87 page faults an item, and a tenth more time."""


class WorkerProcess:
    """A worker that was started. Owns its pidfd, its life pipe and the memfd of its last words."""

    def __init__(self, place: WorkerPlace, launch: Launch, life_write_fd: int, output: Output) -> None:
        """Start it. `life_write_fd`, taken over, stays open in this process alone, as long as the worker is to live.

        What it prints and logs goes to `output`.
        """
        self.place = place
        self.life = launch.life
        self.ready = False
        self.ready_ns = 0
        self.hung = ""
        """Why it was killed for taking too long, if it was."""
        self.rss_bytes = 0
        self._fds = [life_write_fd]
        try:
            self._crash_fd = self._own(os.memfd_create("stagepipe-crash", os.MFD_CLOEXEC))
            with output.pipe(place.plan.name, place.worker) as output_fd:
                self._popen = self._spawn(launch, output_fd)
            self.pid = self._popen.pid
            die_together(launch.life_fd, self.pid)
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

    def _spawn(self, launch: Launch, output_fd: int) -> subprocess.Popen[bytes]:
        launch_fd = write_launch(launch)
        own_fds = (launch_fd, self._crash_fd, launch.life_fd)
        try:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "stagepipe.worker", *map(str, own_fds)],
                pass_fds=sorted({launch_fd, self._crash_fd, *launch.fds}),
                env=_environment(launch),
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
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

    def cause(self, *, out_of_memory: bool = False) -> str:
        """Why it ended, in words. `out_of_memory`: the kernel has just killed somebody for that."""
        code = self._popen.poll()
        if self.hung:
            return self.hung
        if code is None:
            return "is running"
        if code >= 0:
            return f"ended by itself with exit code {code}"
        return self._killed(-code, out_of_memory=out_of_memory)

    def _killed(self, number: int, *, out_of_memory: bool) -> str:
        name = _NAMES.get(number, f"signal {number}")
        if number == signal.SIGKILL:
            had = self._had()
            if out_of_memory:
                return f"was killed by the kernel because memory ran out ({name}){had}"
            return f"was killed by {name}: by somebody, or by the kernel because memory ran out{had}"
        if number == signal.SIGSEGV:
            return (
                f"was killed by {name}: a fault in native code, or a write into its read-only input "
                "(if so, set `mutable: true` on the stage)"
            )
        if number == signal.SIGBUS:
            return (
                f"was killed by {name}: memory ran out when a page of shared memory was touched, or a file that it had "
                f"mapped was cut off{self._had()}"
            )
        return f"was killed by {name}"

    def _had(self) -> str:
        return f"; it had {format_bytes(self.rss_bytes)} of memory when last looked at" if self.rss_bytes else ""

    @property
    def faulted(self) -> bool:
        """Whether it ended by a memory fault of its own."""
        return self._popen.poll() in {-signal.SIGSEGV, -signal.SIGBUS}

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it, and not for taking too long."""
        return self._popen.poll() == -signal.SIGKILL and not self.hung

    def sample_memory(self) -> None:
        """Keep how much resident memory it has, for the case that it dies of it."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            self.rss_bytes = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * mmap.PAGESIZE

    @property
    def stopped(self) -> bool:
        """Whether it is stopped, by SIGSTOP or a debugger: then it does not age."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in {"T", "t"}

    def stacks(self) -> str:
        """The Python stacks of all its threads; native code shows where it was called. Takes 0.3 s at most."""
        before = os.fstat(self._crash_fd).st_size
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, STACKS_SIGNAL)
        size, deadline = before, monotonic() + _STACKS_S
        while monotonic() < deadline:
            select.select((), (), (), _STACKS_S / 30)
            last, size = size, os.fstat(self._crash_fd).st_size
            if size == last > before:
                break
        return self._words(before, size)

    def kill_hung(self, why: str) -> None:
        """Keep its stacks among its last words, then end it; what follows is as for any death."""
        self.hung = why
        self.stacks()
        self.signal(signal.SIGKILL)

    def last_words(self) -> str:
        """The Python stacks that it left when a signal killed it, or when they were asked for; or nothing."""
        return self._words(0, os.fstat(self._crash_fd).st_size)

    def _words(self, start: int, end: int) -> str:
        return stacks_of_users(os.pread(self._crash_fd, min(end - start, 1 << 16), start).decode(errors="replace"))

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
        if self._fds:  # once: later the number may be another group's
            self.signal(signal.SIGKILL)
            self._close_fds()


def end(workers: Iterable[WorkerProcess], *, asked: bool) -> list[str]:
    """Wait for workers that were `asked` to stop, then SIGTERM, then SIGKILL. Names those who did not go by then."""
    late: list[str] = []
    running = [worker for worker in workers if worker.poll() is None]  # the others' numbers may be somebody else's
    for worker in running:
        if not worker.ready:  # it is building its stages, and hears nothing yet
            worker.signal(signal.SIGTERM)
    for number, seconds in ((None, _STOP_S), (signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
        if number is not None:
            for worker in running:
                if worker.name not in late:
                    late.append(worker.name)
                    _tell_late(worker, asked=asked)
            for worker in running:
                worker.signal(number)
        deadline = monotonic() + (0.0 if number is None and not asked else seconds)
        running = [worker for worker in running if not worker.wait(max(deadline - monotonic(), 0.0))]
        if not running:
            break
    return late


def _tell_late(worker: WorkerProcess, *, asked: bool) -> None:
    """Say what it is at instead of ending."""
    if asked and worker.ready and not worker.stopped:
        message = "%s did not end within %.0f s, and is made to; it is at:\n%s"
        _log.warning(message, worker.name, _STOP_S, worker.stacks())


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
