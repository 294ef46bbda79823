"""One worker process as the supervisor sees it: start, exit and its cause, stacks, termination in steps.

In the caller's process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
from collections.abc import Iterable
from time import monotonic

import psutil

from stagepipe.core import bind_lifetime, format_bytes, register_owner
from stagepipe.runtime.fork_server import UNKNOWN_EXIT_CODE, ForkedProcess
from stagepipe.runtime.logs import OutputCollector
from stagepipe.runtime.protocol import (
    BROKEN_CUDA_EXIT_CODE,
    STACK_DUMP_SIGNAL,
    WorkerSpec,
    extract_user_stacks,
)
from stagepipe.runtime.supervisor.process_start import ProcessStarter
from stagepipe.runtime.supervisor.run_resources import WorkerSlot

_STOP_TIMEOUT_S = 5.0
"""How long workers may take to exit after the stop command, before SIGTERM."""
_SIGTERM_TIMEOUT_S = 2.0
"""How long they may take after SIGTERM, before SIGKILL."""
_SIGKILL_TIMEOUT_S = 5.0
"""How long to wait for the kernel to end them after SIGKILL."""
_STACK_DUMP_TIMEOUT_S = 0.3
_SIGNAL_NAMES = {signal_number.value: signal_number.name for signal_number in signal.Signals}
_log = logging.getLogger("stagepipe")


class WorkerProcess:
    """A started worker. Owns its pidfd, its lifetime pipe and the memfd of its crash log."""

    def __init__(
        self,
        slot: WorkerSlot,
        worker_spec: WorkerSpec,
        lifetime_write_fd: int,
        output_collector: OutputCollector,
        starter: ProcessStarter,
    ) -> None:
        """Start the worker.

        It takes ownership of `lifetime_write_fd`, which stays open in this process alone while the worker may live.
        What the worker prints and logs goes to `output_collector`.
        """
        self.slot = slot
        self.incarnation = worker_spec.incarnation
        self._syntax = worker_spec.plan.first_stage.syntax
        self.is_ready = False
        self.ready_at_ns = 0
        self.timeout_reason = ""
        """Which timeout it exceeded, if it was killed for that; else ""."""
        self.rss_bytes = 0
        self._owned_fds = [lifetime_write_fd]
        register_owner(self)
        try:
            self._crash_log_fd = self._own_fd(os.memfd_create("stagepipe-crash", os.MFD_CLOEXEC))
            with output_collector.open_pipe(slot.process_plan.first_stage.row, slot.worker) as output_fd:
                self._popen = starter.start(worker_spec, self._crash_log_fd, output_fd)
            self.pid = self._popen.pid
            self._process = psutil.Process(self.pid)
            bind_lifetime(worker_spec.lifetime_fd, self.pid)
            self.pidfd = self._own_fd(os.pidfd_open(self.pid))
        except BaseException:
            self._close_fds()
            raise

    def _own_fd(self, fd: int) -> int:
        self._owned_fds.append(fd)
        return fd

    def _close_fds(self) -> None:
        for fd in self._owned_fds:
            os.close(fd)
        self._owned_fds.clear()

    def abandon_in_child(self) -> None:
        """Close the descriptors: a child that kept the lifetime pipe open would keep the worker alive."""
        self._close_fds()

    @property
    def name(self) -> str:
        """Stage and worker number, as in `decode/1`."""
        return self.slot.name

    def poll(self) -> int | None:
        """Its exit code, minus the signal number if a signal killed it; None while it runs."""
        return self._popen.poll()

    def describe_exit(self, *, has_oom_kill: bool = False) -> str:
        """Why it exited, as the predicate of a sentence.

        `has_oom_kill`: the kernel's out-of-memory killer has just killed a process.
        """
        exit_code = self._popen.poll()
        if self.timeout_reason:
            return self.timeout_reason
        if exit_code is None:
            return "is running"
        if exit_code == BROKEN_CUDA_EXIT_CODE:
            return "ended because CUDA fails in its process from now on, after the error that it printed"
        if exit_code == UNKNOWN_EXIT_CODE:
            return "ended, and how is not known, because the fork server that started it has died"
        if exit_code >= 0:
            return f"exited unexpectedly with exit code {exit_code}"
        return self._describe_signal_death(-exit_code, has_oom_kill=has_oom_kill)

    def _describe_signal_death(self, signal_number: int, *, has_oom_kill: bool) -> str:
        name = _SIGNAL_NAMES.get(signal_number, f"signal {signal_number}")
        if signal_number == signal.SIGKILL:
            memory_use = self._describe_memory_use()
            if has_oom_kill:
                return f"was killed by the kernel because memory ran out ({name}){memory_use}"
            return f"was killed by {name}, by another process or by the kernel because memory ran out{memory_use}"
        if signal_number == signal.SIGSEGV:
            return (
                f"was killed by {name}: a fault in native code, or a write to its read-only input "
                f"(if so, set `{self._syntax.format_setting('mutable', value=True)}` on the stage)"
            )
        if signal_number == signal.SIGBUS:
            return (
                f"was killed by {name}: memory ran out for a page of shared memory, or a file that it had mapped was "
                f"truncated{self._describe_memory_use()}"
            )
        return f"was killed by {name}"

    def _describe_memory_use(self) -> str:
        return f"; it used {format_bytes(self.rss_bytes)} of memory when last sampled" if self.rss_bytes else ""

    @property
    def has_memory_fault(self) -> bool:
        """Whether SIGSEGV or SIGBUS killed it."""
        return self._popen.poll() in {-signal.SIGSEGV, -signal.SIGBUS}

    @property
    def was_killed_externally(self) -> bool:
        """Whether SIGKILL killed it, other than for a timeout."""
        return self._popen.poll() == -signal.SIGKILL and not self.timeout_reason

    def sample_memory(self) -> None:
        """Record its resident memory, which the message names if it is killed."""
        with contextlib.suppress(psutil.Error):
            self.rss_bytes = self._process.memory_info().rss

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped, by SIGSTOP or a debugger. Its timeouts do not run then."""
        try:
            return self._process.status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
        except psutil.Error:
            return False

    def dump_stacks(self) -> str:
        """The Python stacks of all its threads. Takes at most 0.3 s. Native code shows as the line that called it."""
        size_before = os.fstat(self._crash_log_fd).st_size
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, STACK_DUMP_SIGNAL)
        size = size_before
        deadline = monotonic() + _STACK_DUMP_TIMEOUT_S
        while monotonic() < deadline:
            select.select((), (), (), _STACK_DUMP_TIMEOUT_S / 30)
            previous_size = size
            size = os.fstat(self._crash_log_fd).st_size
            if size == previous_size > size_before:
                break
        return self._read_crash_log_range(size_before, size)

    def kill_after_timeout(self, reason: str) -> None:
        """Dump its stacks to its crash log, then kill it. The supervisor then handles it like any other death."""
        self.timeout_reason = reason
        self.dump_stacks()
        self.send_signal(signal.SIGKILL)

    def read_crash_log(self) -> str:
        """The Python stacks that it wrote when a signal killed it or `dump_stacks` asked for them; else ""."""
        return self._read_crash_log_range(0, os.fstat(self._crash_log_fd).st_size)

    def _read_crash_log_range(self, start_offset: int, end_offset: int) -> str:
        return extract_user_stacks(
            os.pread(self._crash_log_fd, min(end_offset - start_offset, 1 << 16), start_offset).decode(errors="replace")
        )

    def send_signal(self, signal_number: int) -> None:
        """Send a signal to its process group: to it and the children that it forked."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal_number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its exit. Returns False if it still runs after `timeout_s`."""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Kill the processes that it forked and left behind, and close its descriptors. Call after its exit."""
        if self._owned_fds:  # only once: later the process group's number may be reused
            self.send_signal(signal.SIGKILL)
            if isinstance(self._popen, ForkedProcess):
                self._popen.close()
            self._close_fds()


def terminate_workers(workers: Iterable[WorkerProcess], *, is_stop_requested: bool) -> list[str]:
    """Wait for the workers to exit, then send SIGTERM, then SIGKILL. Returns the names of those that needed a signal.

    `is_stop_requested`: the workers have been told to stop, so wait for that before SIGTERM.
    """
    slow_workers: list[str] = []
    running = [worker for worker in workers if worker.poll() is None]  # the pids of the others may be reused
    for worker in running:
        if not worker.is_ready:  # it is building its stages and does not receive commands yet
            worker.send_signal(signal.SIGTERM)
    for signal_number, timeout_s in (
        (None, _STOP_TIMEOUT_S),
        (signal.SIGTERM, _SIGTERM_TIMEOUT_S),
        (signal.SIGKILL, _SIGKILL_TIMEOUT_S),
    ):
        if signal_number is not None:
            for worker in running:
                if worker.name not in slow_workers:
                    slow_workers.append(worker.name)
                    _log_slow_exit(worker, is_stop_requested=is_stop_requested)
            for worker in running:
                worker.send_signal(signal_number)
        deadline = monotonic() + (0.0 if signal_number is None and not is_stop_requested else timeout_s)
        running = [worker for worker in running if not worker.wait(max(deadline - monotonic(), 0.0))]
        if not running:
            break
    return slow_workers


def _log_slow_exit(worker: WorkerProcess, *, is_stop_requested: bool) -> None:
    """Log the stacks of a worker that does not exit."""
    if is_stop_requested and worker.is_ready and not worker.is_stopped:
        message = "%s did not exit within %.0f s of the stop request and will be terminated; %s"
        _log.warning(message, worker.name, _STOP_TIMEOUT_S, describe_stacks(worker.dump_stacks()))


def describe_stacks(stacks: str) -> str:
    """Return the end of a sentence that shows stacks; a worker in native code, or in its teardown, may have none.

    >>> describe_stacks("Thread 0x1 (most recent call first):")
    'it runs no Python code'
    """
    return f"its stacks:\n{stacks}" if "  File " in stacks else "it runs no Python code"
