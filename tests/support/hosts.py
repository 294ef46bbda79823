"""Hosts in all but iron: each a network, PID, mount, host-name and IPC namespace of its own, on a switch between them.

A host has an address, a host name, a `/tmp`, a `/dev/shm` and a home that no other host sees; all but these and `/mnt`
is read-only, as from one image. A folder that is shared, as over NFS, is at `/mnt/shared` of each. It needs root and
iproute2.

The namespaces have no names: they end with the processes that hold them, and these with the pipe to this process, so
nothing is left behind however it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

SHARED: Final = "/mnt/shared"
"""Where a host sees the shared folder."""
LOCAL: Final = "/mnt/local"
"""A folder of each host's own, for its data and its results."""
_NETWORK: Final = "10.77.0"
_START_TIMEOUT_S: Final = 120.0
_SETUP: Final = """
set -e
hostname "$1"
mount -t tmpfs -o size=1g tmpfs /mnt
mkdir -p /mnt/local /mnt/home
if [ -n "$2" ]; then mkdir /mnt/shared && mount --bind "$2" /mnt/shared; fi
printf '127.0.0.1 localhost\\n%b' "$3" > /mnt/hosts && mount --bind /mnt/hosts /etc/hosts
: > /mnt/resolv.conf && mount --bind /mnt/resolv.conf /etc/resolv.conf
mount -t tmpfs -o size=600m tmpfs /tmp
mount -t tmpfs -o size=200m tmpfs /dev/shm
mount -o remount,bind,ro /
cd /mnt/local
echo ready
while read -r _; do :; done
"""
"""The first process of a host: bash, which also takes in the orphans. Ends with its standard input."""


def find_what_is_missing() -> str:
    """Return why this machine cannot have such hosts; "" if it can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [name for name in ("ip", "unshare", "nsenter", "bash") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)} (Debian: iproute2, util-linux)" if missing else ""


class Host:
    """One host. Use `Hosts`."""

    def __init__(self, number: int, shared: Path | None, names: str) -> None:
        self.number = number
        self.name = f"sp-node{number}"
        self.address = f"{_NETWORK}.{number + 1}"
        self._unshare = subprocess.Popen(
            [
                *("unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("bash", "-c", _SETUP, "host", self.name, str(shared or ""), names),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._unshare.stdout is not None
        if self._unshare.stdout.readline() != "ready\n":
            self._unshare.wait(10)
            message = f"{self.name} has not started"
            raise AssertionError(message)
        parent = self._unshare.pid
        self._first_pid = int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    def wrap(self, command: Sequence[str], folder: str = LOCAL) -> list[str]:
        """Return the command that runs `command` on the host."""
        namespaces = ("--net", "--uts", "--ipc", "--mount", "--pid")
        return ["nsenter", f"--target={self._first_pid}", *namespaces, f"--wdns={folder}", *command]

    def start(self, *command: str, folder: str = LOCAL, **options: Any) -> subprocess.Popen[str]:
        """Start a command on the host, in `folder`."""
        return subprocess.Popen(self.wrap(command, folder), text=True, **options)

    def run(self, *command: str, folder: str = LOCAL, timeout_s: float = 60.0, **options: Any) -> str:
        """Run a command on the host; return what it printed. Raises if it fails."""
        done = subprocess.run(
            self.wrap(command, folder), text=True, capture_output=True, timeout=timeout_s, check=False, **options
        )
        assert done.returncode == 0, f"{self.name}: {' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def find(self, path: str) -> Path:
        """Return where this process finds a path of the host, which must live."""
        return Path(f"/proc/{self._first_pid}/root{path}")

    def list_processes(self) -> dict[int, str]:
        """Return the processes of the host, but its first one and those that `nsenter` has put there, by their ids."""
        lines = self.run("ps", "-eo", "pid=,ppid=,stat=,args=").splitlines()
        fields = [line.split(maxsplit=3) for line in lines]
        kept = [(pid, args) for pid, _, stat, args in fields if pid != "1" and stat[0] != "Z"]
        return {int(pid): args for pid, args in kept if "ps -eo" not in args}

    def kill(self) -> None:
        """End all processes of the host at once, as a loss of power does."""
        if self._unshare.poll() is None:
            os.kill(self._first_pid, signal.SIGKILL)
        self._unshare.wait(30)

    def end(self) -> None:
        """End the host."""
        for stream in (self._unshare.stdin, self._unshare.stdout):
            assert stream is not None
            stream.close()
        try:
            self._unshare.wait(30)
        finally:
            self._unshare.kill()  # does nothing to one that has ended
            self._unshare.wait()


class Hosts:
    """Hosts on one switch. A context manager."""

    def __init__(self, count: int, shared: Path | None = None) -> None:
        """`shared`: the folder that all hosts see as `SHARED`; None: they share nothing."""
        self._count = count
        self._shared = shared
        self._switch: subprocess.Popen[str] | None = None
        self.hosts: list[Host] = []

    def __getitem__(self, number: int) -> Host:
        return self.hosts[number]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        self._switch = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._switch.stdout is not None
        assert self._switch.stdout.readline() == "ready\n"
        self._ip("link add switch type bridge")
        self._ip(f"address add {_NETWORK}.254/24 dev switch")
        self._ip("link set switch up")
        self._ip("link set lo up")
        names = "".join(f"{_NETWORK}.{number + 1} sp-node{number}\\n" for number in range(self._count))
        for number in range(self._count):
            host = Host(number, self._shared, names)
            self.hosts.append(host)
            self._ip(f"link add node{number} type veth peer name eth0 netns {host._first_pid}")
            self._ip(f"link set node{number} master switch up")
            host.run("ip", "link", "set", "lo", "up")
            host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "up")
            host.run("ip", "route", "add", "default", "via", f"{_NETWORK}.254")

    def _ip(self, arguments: str) -> None:
        assert self._switch is not None
        subprocess.run(["nsenter", f"--target={self._switch.pid}", "--net", "ip", *arguments.split()], check=True)

    def set_link(self, number: int, state: str) -> None:
        """Set the link of a host `down`, at the switch, or `up`."""
        self._ip(f"link set node{number} {state}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for host in self.hosts:
            host.end()
        if self._switch is not None:
            self._switch.communicate(timeout=10)
