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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from published_.model import Cell, Contestant, Job, Turn
from published_.registry import target
from published_.turn import WRONG

_PR_SET_CHILD_SUBREAPER = 36
_BENCHMARKS = Path(__file__).parents[1]
_END_S = 5.0
_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - a tmpfs, which some contestants are about


def adopt_orphans() -> None:
    """From here on, what descends from this process and loses its parent becomes its child."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_turn(who: Contestant, job: Job, number: int, limit_s: float) -> Turn:
    """Run it in a fresh process, at most `limit_s`. SystemExit where something arrived wrong."""
    empty = Turn(job.experiment, job.contestant, number, load_average=os.getloadavg()[0])
    with tempfile.TemporaryDirectory(prefix="stagepipe-", ignore_cleanup_errors=True) as folder, _nothing_left():
        (job_file := Path(folder) / "job.json").write_text(json.dumps(asdict(replace(job, folder=folder))))
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "published_.turn", str(job_file), str(result)]
        if who.launch:
            command = target(who.launch)(Path(folder), command)
        log = Path(folder) / "log.txt"
        status = _wait(command, folder, log, limit_s)
        if status == WRONG or "WRONG: " in (words := log.read_text(errors="replace")):
            message = f"{job.contestant}: {_last_line(log.read_text(errors='replace'))}"
            raise SystemExit(message)
        if not result.exists():
            reason = f"took longer than {limit_s:.0f} s" if status is None else _last_line(words)
            return replace(empty, reason=reason or f"ended with status {status}")
        return replace(empty, **_read(result))


def _read(result: Path) -> dict[str, Any]:
    found = json.loads(result.read_text())
    return {**found, "cells": [Cell(**cell) for cell in found["cells"]]}


def _wait(command: list[str], folder: str, log: Path, limit_s: float) -> int | None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_BENCHMARKS), os.environ.get("PYTHONPATH")])),
        "TMPDIR": folder,
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
def _nothing_left() -> Iterator[None]:
    """What was not there before is ended: first asked to, then made to; and what it kept in memory files removed."""
    before, files = set(psutil.Process().children(recursive=True)), _memory_files()
    try:
        yield
    finally:
        left = [each for each in psutil.Process().children(recursive=True) if each not in before]
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.terminate()
        _, alive = psutil.wait_procs(left, _END_S)
        for each in alive:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(alive, _END_S)
        for path in _memory_files() - files:
            _remove(path)


def _memory_files() -> set[Path]:
    """Those of the kinds that a turn makes; nobody else's."""
    names = ("stagepipe-turn-*", "iox2_*stagepipe*")
    return {path for name in names for path in _MEMORY_FOLDER.glob(name)}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _last_line(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
