"""What the command lines share: the machine, options, the last line, the JSON, and rows of one figure in rounds."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.figures import estimate
from benchmarks.common.turn import order

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("stagepipe", "numpy", "torch", "pyzmq")


def machine(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the machine. `packages` are listed with the usual ones; a package that is not installed is left out.

    `commit` is that of this checkout.
    """
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    versions = {"python": platform.python_version()}
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


def find_commit() -> str:
    """Return the commit of this checkout, with `-dirty` if tracked files differ; "unknown" without git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],  # noqa: S607 - the git of the user
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


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
    """Describe the hardware alone, in a line short enough to stand below a plot."""
    gib = description["memory_bytes"] / (1 << 30)
    return f"{description['cpu']}, {description['cpus']} CPUs, {gib:.0f} GiB, Linux {description['kernel']}"


ROUNDS = 7


def parse_names(known: Sequence[str], kind: str, separator: str = ",") -> Callable[[str], list[str]]:
    """Return the type of an option that lists names of `known`.

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


def finish(begin_s: float, path: Path | None, document: dict[str, Any]) -> None:
    """Print how long the run took and the load at its end, and write the JSON if requested."""
    print(f"{time.monotonic() - begin_s:.0f} s; load average {machine()['load_average']:.1f} at the end")
    write_json(path, document)


def write_json(path: Path | None, document: dict[str, Any]) -> None:
    """Write the JSON, if a path was given."""
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


def make_parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with `--rounds` and `--json`; `text` is the module's docstring."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="each row is measured in each")
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    return parser


def report_rows(name: str, rows: Mapping[str, Callable[[], float]], rounds: int, json_path: Path | None) -> None:
    """Measure the rows, which return nanoseconds, print their medians in us, and write the JSON if requested."""
    about = machine()
    found: dict[str, list[float]] = {row: [] for row in rows}
    for number in range(rounds):
        for row in order(list(rows), number):
            found[row].append(rows[row]())
    coverage = estimate([0.0] * rounds).coverage
    print(machine_line(about), f"Repeat: {repeat_command(name)}", sep="\n")
    print(f"us, medians of {rounds} rounds with their {100 * coverage:.0f} % intervals")
    width = 2 + max(map(len, rows))
    for row, values_ns in found.items():
        print(f"{row:{width}}{estimate([value / 1000 for value in values_ns]).text()}")
    write_json(json_path, {"machine": about, "ns": found})
