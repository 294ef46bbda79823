"""A turn's process: started, waited for, and ended with all that it started.

This process adopts whatever a turn leaves without a parent (PR_SET_CHILD_SUBREAPER, prctl(2)), so that even what a
server has put into the background is found, and ended by its id.
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

from published_.model import Cell, Contestant, Job, Turn
from published_.naming import left_by
from published_.registry import target

_PR_SET_CHILD_SUBREAPER = 36
_BENCHMARKS = Path(__file__).parents[1]
_END_S = 5.0


def adopt_orphans() -> None:
    """From here on, what descends from this process and loses its parent becomes its child."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_turn(who: Contestant, job: Job, number: int, limit_s: float) -> Turn:
    """Run it in a fresh process, at most `limit_s`. SystemExit where something arrived wrong."""
    empty = Turn(job.experiment, job.contestant, number, load_average=os.getloadavg()[0])
    with _nothing_left() as folder:
        (job_file := folder / "job.json").write_text(json.dumps(asdict(job)))
        result, log = folder / "result.json", folder / "log.txt"
        command = [sys.executable, "-m", "published_.turn", str(job_file), str(result)]
        if who.launch:
            command = target(who.launch)(folder, command)
        begin = time.monotonic()
        status = _wait(command, folder, log, limit_s)
        empty = replace(empty, took_s=time.monotonic() - begin)
        if result.exists():
            return replace(empty, **_read(result))
        if status is None:
            return replace(empty, reason=f"took longer than {limit_s:.0f} s")
        return replace(empty, reason=_last_line(log.read_text(errors="replace")) or f"ended with status {status}")


def _read(result: Path) -> dict[str, Any]:
    found = json.loads(result.read_text())
    if "wrong" in found:
        raise SystemExit(found["wrong"])
    return {**found, "cells": [Cell(**cell) for cell in found["cells"]]}


def _wait(command: list[str], folder: Path, log: Path, limit_s: float) -> int | None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_BENCHMARKS), os.environ.get("PYTHONPATH")])),
        "TMPDIR": str(folder),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:  # too long, or interrupted
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)


@contextmanager
def _nothing_left() -> Iterator[Path]:
    """A temporary folder. Behind it what was started is ended, first asked to, then made to; and all files removed."""
    before = set(psutil.Process().children(recursive=True))
    with tempfile.TemporaryDirectory(prefix="turn-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            _end([each for each in psutil.Process().children(recursive=True) if each not in before])
            for path in left_by(Path(folder)):
                _remove(path)


def _end(processes: Sequence[psutil.Process]) -> None:
    for ask in (psutil.Process.terminate, psutil.Process.kill):
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                ask(each)
        _, processes = psutil.wait_procs(processes, _END_S)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _last_line(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
