"""Finds what a run has left behind: processes, descriptors, threads, files."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from pathlib import Path

from tests.support.processes import list_fork_server_fds, list_fork_servers, list_session_pids

MARK = "STAGEPIPE_CHAOS_RUN"
"""An environment variable that all processes of a run inherit."""
_GRACE_S = 3.0


def find_marked_pids(value: str) -> list[int]:
    """Return the live processes that were executed with `MARK=value` in their environment, except this one."""
    pids, entry = [], f"{MARK}={value}".encode()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and entry in (folder / "environ").read_bytes() and not _is_zombie(folder):
                pids.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in pids if pid != os.getpid()]


def _is_zombie(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


class Leftovers:
    """A record of the state before a run; `found` describes what the run has added to it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._pids = list_session_pids()
        self._descriptors = _list_descriptors()
        self._threads = set(threading.enumerate())
        self._files = _list_files()

    def found(self) -> str:
        """Return a description of the leftovers, empty if there are none. Waits up to 3 s for them to go."""
        deadline = time.monotonic() + _GRACE_S
        while (leftovers := self._describe()) and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.05)
        return leftovers

    def _describe(self) -> str:
        fds = _list_descriptors()
        new_fds = {fd: target for fd, target in fds.items() if self._descriptors.get(fd) != target}
        # Forked workers have the mark of their server's start, so they are found by their session.
        processes = (set(find_marked_pids(self._mark)) | list_session_pids()) - self._pids - list_fork_servers()
        leftovers = {
            "processes": sorted(processes),
            "descriptors": new_fds if len(fds) > len(self._descriptors) else {},
            "threads": [thread.name for thread in set(threading.enumerate()) - self._threads],
            "files": sorted(_list_files() - self._files),
        }
        return ", ".join(f"{kind} {entries}" for kind, entries in leftovers.items() if entries)


def _list_descriptors() -> dict[str, str]:
    targets = {}
    fork_server_fds = list_fork_server_fds()
    for path in Path("/proc/self/fd").iterdir():
        if int(path.name) in fork_server_fds:
            continue
        try:
            targets[path.name] = str(path.readlink())
        except OSError:
            continue
    return targets


def _list_files() -> set[str]:
    shared_memory = Path("/dev/shm")
    files = {str(path) for path in Path(tempfile.gettempdir()).glob("stagepipe-*")}
    return files | {str(path) for path in (shared_memory.glob("stagepipe-????????") if shared_memory.is_dir() else ())}
