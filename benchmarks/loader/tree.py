"""The memory of a process and of all its descendants."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.hop.timing import descendant_pids


def pss_bytes() -> int:
    """Return the proportional set size of this process and its descendants.

    A page shared by n processes counts 1/n in each. The figures are from /proc/PID/smaps_rollup (proc_pid_smaps(5)). A
    process that has ended meanwhile counts 0.
    """
    return sum(_pss(pid) for pid in (os.getpid(), *descendant_pids()))


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
