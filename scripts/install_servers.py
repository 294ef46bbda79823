"""Install the servers of benchmarks/published that Debian packages.

    python scripts/install_servers.py

It requires apt (Debian, Ubuntu) and root. Without them it prints the reason and changes nothing. The benchmark then
still runs, and its tables show which mechanisms lack a server. The script starts no server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGES = {"mpiexec": "openmpi-bin", "rabbitmq-server": "rabbitmq-server", "redis-server": "redis-server"}
_POLICY = Path("/usr/sbin/policy-rc.d")
"""Decides whether a package may start its service, see invoke-rc.d(8). Exit status 101 forbids it."""
_DEADLINE_S = 900.0


def main() -> int:
    """Install the missing servers. The exit status is 0 even if nothing could be installed."""
    lacking = {program: package for program, package in _PACKAGES.items() if shutil.which(program) is None}
    if not lacking:
        print(f"all there: {', '.join(_PACKAGES)}")
        return 0
    if (reason := _hindrance()) is not None:
        print(f"{', '.join(lacking)}: not installed, because {reason}; the benchmark runs without")
        return 0
    with _nothing_started():
        for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-qy", "--no-install-recommends"]):
            packages = list(lacking.values()) if "install" in command else []
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            done = subprocess.run([*command, *packages], env=environment, check=False, timeout=_DEADLINE_S)
            if done.returncode:
                print(f"{' '.join(command)} failed; the benchmark runs without {', '.join(lacking)}")
                return 0
    return 0


def _hindrance() -> str | None:
    if shutil.which("apt-get") is None:
        return "there is no apt here"
    if os.geteuid() != 0:
        return "this is not root (sudo would do)"
    return None


@contextmanager
def _nothing_started() -> Iterator[None]:
    """Prevent the packages from starting their services, unless a policy exists already."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


if __name__ == "__main__":
    sys.exit(main())
