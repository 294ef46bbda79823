"""Runs commands that may not read what its mode forbids: also for root, which otherwise reads everything."""

import os
import shutil
import subprocess
from pathlib import Path

_DROPPED = "-dac_override,-dac_read_search"


def drops_rights() -> bool:
    """Whether setpriv can take root's right to read every file."""
    if shutil.which("setpriv") is None:
        return False
    return subprocess.run([*_get_prefix(), "true"], capture_output=True, check=False).returncode == 0


def run_without_rights(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder. For root, call `drops_rights` before."""
    prefix = _get_prefix() if os.getuid() == 0 else []
    return subprocess.run([*prefix, *command], cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def _get_prefix() -> list[str]:
    return ["setpriv", f"--bounding-set={_DROPPED}", f"--inh-caps={_DROPPED}"]
