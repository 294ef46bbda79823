"""A worktree of this repository in which every item burns more processor time, on both sides of a hop."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.paths import ROOT

_BURN = """

def _burn_after(plain):
    from time import thread_time_ns

    def slower(*arguments, **keys):
        result = plain(*arguments, **keys)
        end_ns = thread_time_ns() + {burn_ns}
        while thread_time_ns() < end_ns:
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
        for name, method in _METHODS.items() if burn_ns else ():
            path = tree / "stagepipe/transport/hop" / name
            path.write_text(path.read_text() + _BURN.format(burn_ns=burn_ns // 2, method=method))
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)
