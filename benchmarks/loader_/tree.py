"""The memory of a process and of all below it."""

from __future__ import annotations

import os
from pathlib import Path

from hop_.timing import descendants


def pss_bytes() -> int:
    """The proportional set size of this process and its descendants: a page shared by n processes counts 1/n in each.

    From /proc/PID/smaps_rollup (proc_pid_smaps(5)). One that has ended meanwhile counts nothing.
    """
    return sum(_pss(pid) for pid in (os.getpid(), *descendants()))


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
