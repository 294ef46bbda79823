"""The processes that belong to runs: all descendants but the fork servers, which last as long as their caller."""

import errno
import os
import time
from pathlib import Path

import psutil

from stagepipe.runtime.fork_server import registry


def list_run_processes(pid: int | None = None) -> set[psutil.Process]:
    """The living descendants of a process (None: of this one) that a run has started."""
    processes = psutil.Process(pid).children(recursive=True)
    return {process for process in processes if is_alive(process) and not is_fork_server(process)}


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


def list_fork_servers() -> set[int]:
    """The fork servers of this process."""
    return {child.pid for child in psutil.Process().children() if is_fork_server(child)}


def list_fork_server_fds() -> set[int]:
    """The descriptors that this process needs to talk to its fork servers."""
    spare = registry._spare
    servers = [*registry._servers.values(), *([spare.server] if spare else [])]
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
