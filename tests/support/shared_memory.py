"""Named shared memory that a test must not leave behind, while other tests create and remove theirs."""

import os
import time
from pathlib import Path

import psutil

_FOLDER = Path("/dev/shm")
_GRACE_S = 30.0


def list_segments(*prefixes: str) -> set[str]:
    """The names in /dev/shm that begin with one of the prefixes."""
    return {path.name for path in _FOLDER.iterdir() if path.name.startswith(prefixes)}


def list_kept_segments(before: set[str], *prefixes: str) -> set[str]:
    """The new names that stay. What has been left behind stays for good; another test's goes, or is in use there."""
    kept = list_segments(*prefixes) - before
    deadline = time.monotonic() + _GRACE_S
    while kept and time.monotonic() < deadline:
        time.sleep(0.05)
        kept &= list_segments(*prefixes)
    return kept - _list_segments_of_others() if kept else kept


def _list_segments_of_others() -> set[str]:
    """The names that processes map which are neither this one nor its descendants."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    names = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in own:
            continue
        try:
            lines = (folder / "maps").read_text().splitlines()
        except OSError:  # the process has ended, or belongs to another user
            continue
        names |= {line.rpartition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}
    return names
