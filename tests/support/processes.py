"""The processes that belong to runs: all descendants but those that last as long as their caller.

These are the fork servers, and the resource tracker of `multiprocessing`, which stays once a test has used it.
"""

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

from stagepipe.runtime.fork_server import client


def list_run_processes(pid: int | None = None) -> set[psutil.Process]:
    """The living descendants of a process (None: of this one) that a run has started."""
    processes = psutil.Process(pid).children(recursive=True)
    return {process for process in processes if is_alive(process) and not lasts_as_its_caller(process)}


def lasts_as_its_caller(process: psutil.Process) -> bool:
    """Whether a process is a fork server or the resource tracker."""
    return is_fork_server(process) or is_resource_tracker(process)


def is_resource_tracker(process: psutil.Process) -> bool:
    """Whether a process removes the named resources of a program that uses `multiprocessing`."""
    try:
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs: an exited one that is not reaped yet does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_fork_server(process: psutil.Process) -> bool:
    """Whether a process is a fork server. Its workers have its command line, but names of their own."""
    try:
        return "stagepipe.worker_server" in process.cmdline() and not process.name().startswith("sp:")
    except psutil.NoSuchProcess:
        return False


def list_run_command_lines(word: str) -> list[str]:
    """The command lines with `word` of the descendants that runs have started."""
    lines = []
    for process in list_run_processes():
        with suppress(psutil.Error):  # it may end at any moment
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if word in line]


def list_fork_servers() -> set[int]:
    """The fork servers of this process."""
    return {child.pid for child in psutil.Process().children() if is_fork_server(child)}


def list_fork_server_fds() -> set[int]:
    """The descriptors that this process needs to talk to its fork servers."""
    spare = client._spare
    servers = [*client._servers.values(), *([spare.server] if spare else [])]
    return {fd for server in servers for fd in (server._connection.fileno(), server._lifetime_write_fd)}


def list_session_pids() -> set[int]:
    """The living processes of this session but the fork servers; also those whose parent has gone."""
    found = set()
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == os.getsid(0) and is_alive(process) and not is_fork_server(process):
                found.add(process.pid)
        except (OSError, psutil.Error):
            continue
    return found


def remove_cgroup(folder: Path, within_s: float = 20.0) -> None:
    """Remove a control group; its last process, the fork server of a script that has ended, may still have to exit."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.02)
