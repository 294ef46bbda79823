"""A worktree of this repository in which every item burns more processor time, on both sides of a hop."""

from __future__ import annotations

import subprocess
import time
import timeit
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.paths import ROOT

_BURN = """

def _burn_after(plain):
    def slower(*arguments, **keys):
        result = plain(*arguments, **keys)
        for _ in range({spins}):
            pass
        return result

    return slower


{method} = _burn_after({method})
"""
_METHODS = {"sender.py": "Sender.send", "receiver.py": "Receiver.receive"}


@contextmanager
def plant(folder: Path, burn_ns: int) -> Iterator[Path]:
    """Check the last commit out into `folder`/tree, where an item costs `burn_ns` more. 0 changes nothing."""
    tree = folder / "tree"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(tree), "HEAD"], check=True)
    try:
        spins = round(burn_ns / 2 / _measure_spin_ns())
        for name, method in _METHODS.items() if burn_ns else ():
            path = tree / "stagepipe/transport" / name
            path.write_text(path.read_text() + _BURN.format(spins=spins, method=method))
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _measure_spin_ns() -> float:
    """In a function, as in `_BURN`: the loop's variable is then a local one."""
    times_s = timeit.repeat("for _ in range(100_000): pass", timer=time.process_time, repeat=7, number=1)
    return min(times_s) * 1e9 / 100_000
