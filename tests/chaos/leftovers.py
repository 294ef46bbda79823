"""What a run may leave behind: processes, descriptors, threads, files."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from pathlib import Path

MARK = "STAGEPIPE_CHAOS_RUN"
"""An environment variable that all processes of a run inherit."""
_GONE_S = 3.0


def marked(value: str) -> list[int]:
    """The live processes of the run `value`, whoever their parent is now."""
    found, wanted = [], f"{MARK}={value}".encode()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes() and not _is_zombie(folder):
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def _is_zombie(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


class Leftovers:
    """What there was before a run; `found` says what more there is after it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._descriptors, self._threads, self._files = _descriptors(), set(threading.enumerate()), _files()

    def found(self) -> str:
        """What was left, in words; empty if nothing was. Gives it some seconds to go."""
        deadline = time.monotonic() + _GONE_S
        while (said := self._look()) and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.05)
        return said

    def _look(self) -> str:
        more = {fd: target for fd, target in _descriptors().items() if self._descriptors.get(fd) != target}
        found = {
            "processes": marked(self._mark),
            "descriptors": more if len(_descriptors()) > len(self._descriptors) else {},
            "threads": [thread.name for thread in set(threading.enumerate()) - self._threads],
            "files": sorted(_files() - self._files),
        }
        return ", ".join(f"{kind} {what}" for kind, what in found.items() if what)


def _descriptors() -> dict[str, str]:
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            found[path.name] = str(path.readlink())
        except OSError:
            continue
    return found


def _files() -> set[str]:
    shared = Path("/dev/shm")
    found = {str(path) for path in Path(tempfile.gettempdir()).glob("stagepipe-*")}
    return found | {str(path) for path in (shared.glob("stagepipe-????????") if shared.is_dir() else ())}
