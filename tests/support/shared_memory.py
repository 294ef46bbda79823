"""Named shared memory that a test must not leave behind, while other tests create and remove theirs."""

import time
from pathlib import Path

_FOLDER = Path("/dev/shm")
_GRACE_S = 30.0


def list_segments(*prefixes: str) -> set[str]:
    """The names in /dev/shm that begin with one of the prefixes."""
    return {path.name for path in _FOLDER.iterdir() if path.name.startswith(prefixes)}


def list_kept_segments(before: set[str], *prefixes: str) -> set[str]:
    """The new names that stay. What has been left behind stays for good; another test's goes."""
    kept = list_segments(*prefixes) - before
    deadline = time.monotonic() + _GRACE_S
    while kept and time.monotonic() < deadline:
        time.sleep(0.05)
        kept &= list_segments(*prefixes)
    return kept
