"""The common parts of command lines: the machine, options, the first and the last lines of a run, and its JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import stagepipe
from benchmarks.common.turn import ROOT

_PACKAGES = ("numpy", "torch", "pyzmq")
_BEGIN_S = monotonic()
ROUNDS = 6
"""The smallest number of rounds with an interval of 95 % coverage."""


def machine(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the machine. `packages` are listed with the usual ones; a package that is not installed is left out.

    `commit` is the commit of this checkout.
    """
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    versions = {"python": platform.python_version(), "stagepipe": stagepipe.__version__}
    for package in (*_PACKAGES, *packages):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "commit": find_commit(),
        "load_average": os.getloadavg()[0],
        "versions": versions,
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def is_same_machine(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether the figures of two runs are comparable: same machine and versions. The load may differ."""
    return all(before[key] == now[key] for key in ("cpu", "cpus", "kernel", "versions"))


def find_commit() -> str:
    """Return the commit of this checkout, with `-dirty` if tracked files differ; "unknown" without git."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def repeat_command(name: str) -> str:
    """Return the command that runs this benchmark again, from the folder of the project.

    >>> repeat_command("hop").startswith("python -m benchmarks.hop")
    True
    """
    return shlex.join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]])


def machine_line(description: dict[str, Any]) -> str:
    """Describe the machine and its software in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in description["versions"].items())
    commit = f", commit {description['commit']}" if "commit" in description else ""  # older files have none
    return f"{hardware_line(description)}, {versions}{commit}; load average {description['load_average']:.1f}"


def hardware_line(description: dict[str, Any]) -> str:
    """Describe only the hardware, in a line that is short enough to fit below a plot."""
    gib = description["memory_bytes"] / (1 << 30)
    return f"{description['cpu']}, {description['cpus']} CPUs, {gib:.0f} GiB, Linux {description['kernel']}"


def make_parser(text: str | None, *, rounds: int | None = ROUNDS) -> argparse.ArgumentParser:
    """Return a parser with `--rounds` and `--json`; `text` is the module's docstring."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="each contestant has a turn in each")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    return parser


def add_names(
    parser: argparse.ArgumentParser, option: str, known: Sequence[str], kind: str, *, separator: str = ","
) -> None:
    """Add an option that lists names from `known`. Its default is all of them."""
    parser.add_argument(
        option,
        type=parse_names(known, kind, separator),
        default=list(known),
        help=f"{kind}s: {f'{separator} '.join(known)}",
    )


def add_corrupt(parser: argparse.ArgumentParser) -> None:
    """Add the option with which a test shows that the check of the arriving items works."""
    text = "corrupt one element of what this contestant delivers; the check must stop the run"
    parser.add_argument("--corrupt", default="", help=text)


def parse_names(known: Sequence[str], kind: str, separator: str = ",") -> Callable[[str], list[str]]:
    """Return the type of an option that lists names from `known`.

    >>> parse_names(("Pipe", "Queue"), "contestant")("Queue, Pipe")
    ['Queue', 'Pipe']
    """

    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(separator)]
        for name in names:
            if name not in known:
                message = f"unknown {kind} {name!r}; choose from {f'{separator} '.join(known)}"
                raise argparse.ArgumentTypeError(message)
        return names

    return parse


def open_run(name: str, *notes: str, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Print the machine, `notes` and the command, and return the beginning of the run's JSON: `command`, `machine`."""
    about: dict[str, Any] = {"command": repeat_command(name), "machine": machine(packages)}
    print(machine_line(about["machine"]), *notes, f"Repeat: {about['command']}", sep="\n", flush=True)
    return about


def finish(path: Path | None, document: Mapping[str, Any]) -> None:
    """Print how long the program ran and the load at its end, and write the JSON if requested."""
    print(f"{monotonic() - _BEGIN_S:.0f} s; load average {os.getloadavg()[0]:.1f} at the end")
    write_json(path, document)


def write_json(path: Path | None, document: Mapping[str, Any]) -> None:
    """Write the JSON, if a path was given."""
    if path is not None:
        replace_text(path, json.dumps(document, indent=1) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Write a file, and its folder, so that an interruption leaves the earlier contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)
