"""The process of a turn: start it, wait for it, and end everything that it started.

This process, which runs the benchmark, adopts the orphans of a turn (PR_SET_CHILD_SUBREAPER, prctl(2)). So it also
finds what a server has put into the background, and ends it by its id.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.published.model import Cell, Contestant, Job, Turn
from benchmarks.published.naming import files_left_by
from benchmarks.published.registry import resolve

_PR_SET_CHILD_SUBREAPER = 36
_ROOT = Path(__file__).parents[2]
_END_S = 5.0


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_turn(contestant: Contestant, job: Job, round_number: int, limit_s: float) -> Turn:
    """Run the turn in a new process for at most `limit_s`. Raise SystemExit if a transfer arrived wrong."""
    turn = Turn(job.experiment, job.contestant, round_number, load_average=os.getloadavg()[0])
    with _turn_folder() as folder:
        (job_file := folder / "job.json").write_text(json.dumps(asdict(job)))
        result, log = folder / "result.json", folder / "log.txt"
        command = [sys.executable, "-m", "benchmarks.published.turn", str(job_file), str(result)]
        if contestant.launch:
            command = resolve(contestant.launch)(folder, command)
        begin = time.monotonic()
        status = _wait(command, folder, log, limit_s)
        turn = replace(turn, took_s=time.monotonic() - begin)
        if result.exists():
            return replace(turn, **_read(result))
        if status is None:
            return replace(turn, reason=f"did not finish within {limit_s:.0f} s")
        return replace(turn, reason=_last_line(log.read_text(errors="replace")) or f"exited with status {status}")


def _read(result: Path) -> dict[str, Any]:
    document = json.loads(result.read_text())
    if "wrong" in document:
        raise SystemExit(document["wrong"])
    return {**document, "cells": [Cell(**cell) for cell in document["cells"]]}


def _wait(command: list[str], folder: Path, log: Path, limit_s: float) -> int | None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
        "TMPDIR": str(folder),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:  # over its limit, or interrupted
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)


@contextmanager
def _turn_folder() -> Iterator[Path]:
    """Create a temporary folder. On exit, end all processes started inside and remove all files.

    A process gets SIGTERM first, then SIGKILL.
    """
    before = set(psutil.Process().children(recursive=True))
    with tempfile.TemporaryDirectory(prefix="turn-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            _end([child for child in psutil.Process().children(recursive=True) if child not in before])
            for path in files_left_by(Path(folder)):
                _remove(path)


def _end(processes: Sequence[psutil.Process]) -> None:
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, processes = psutil.wait_procs(processes, _END_S)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
