"""A turn: one contestant in a new process, whose result is JSON. What the turn started ends with it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_END_S = 5.0
_SHOWN_CHARACTERS = 300


class TurnError(Exception):
    """A turn failed, or took too long. The message is its last line on standard error."""


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own, so that `run_turn` finds and ends it.

    PR_SET_CHILD_SUBREAPER, prctl(2).
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_turn(module: str, job: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """Run `python -m module JOB RESULT` and return the JSON that it wrote. Raise TurnError if there is none."""
    before = set(psutil.Process().children(recursive=True))
    with tempfile.TemporaryDirectory(prefix="turn-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        result, log = folder / "result.json", folder / "log.txt"
        command = [sys.executable, "-m", module, json.dumps(job), str(result)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        try:
            with log.open("wb") as out:
                subprocess.run(
                    command,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": path, "TMPDIR": name},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    timeout=limit_s,
                    check=True,
                )
            document: dict[str, Any] = json.loads(result.read_text())
        except subprocess.TimeoutExpired:
            message = f"did not finish within {limit_s:.0f} s"
            raise TurnError(message) from None
        except (subprocess.CalledProcessError, FileNotFoundError):
            raise TurnError(last_line(log.read_text(errors="replace"))) from None
        finally:
            end_processes([child for child in psutil.Process().children(recursive=True) if child not in before])
    return document


def end_processes(processes: Sequence[psutil.Process]) -> None:
    """End them with SIGTERM, and those that stay with SIGKILL."""
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, processes = psutil.wait_procs(processes, _END_S)


def last_line(text: str) -> str:
    """Return the last line of a log, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_SHOWN_CHARACTERS] if lines else "it ended without a result"
