"""The commands: `stagepipe` in the test's own process, and a benchmark in a process of its own."""

import subprocess
import sys

from typer.testing import CliRunner

from stagepipe.cli.app import app
from tests.support.paths import ROOT


def call_here(*arguments: str):
    """Call `stagepipe` with the arguments; the result has `exit_code`, `stdout` and `stderr`.

    For calls that start no run, where a process of its own promises nothing.
    """
    return CliRunner().invoke(app, arguments)


def run_benchmark(name: str, *options: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks.NAME` to its end."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)
