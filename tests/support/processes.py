"""The processes that belong to runs: all descendants but the fork servers, which last as long as their caller."""

import psutil


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
