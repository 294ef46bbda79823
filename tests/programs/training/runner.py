"""Runs a training program as it is and with a few lines changed, and compares samples, losses, kills, speed and memory.

Each run is a process with the program's own command line. `recording/sitecustomize.py` writes down what reaches the
model; the program does not know of it.
"""

from __future__ import annotations

import difflib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.common.turn import PssSampler
from tests.programs.sources import Origin, find_python, find_source
from tests.programs.tables import Row
from tests.support.paths import ROOT

_ROUNDS = 2
_TIMEOUT_S = 400
_GIGABYTE = 1e9


@dataclass(frozen=True)
class Edit:
    """A change of one line: the part of it that is in no other line, and what replaces that part."""

    anchor: str
    new: str
    file: str = ""
    """Beside the script; the script itself without it."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training program. Its arguments may name `{data}`, `{out}` and `{workers}`.

    `edits` put stagepipe in. `fixed` is made on both sides, so that samples can be compared: an augmentation draws
    other random numbers in our workers, and nothing may be downloaded. `resume` are further arguments after a kill at
    the loss number `kill_at`.
    """

    name: str
    origin: Origin
    script: str
    arguments: Sequence[str]
    edits: Sequence[Edit]
    make_data: Callable[[Path], None]
    environment: str
    packages: Sequence[str]
    fixed: Sequence[Edit] = ()
    resume: Sequence[str] = ()
    kill_at: int = 0
    import_path: str = ""
    runs_in_data: bool = False
    """With the data as its current directory; without it, the script's folder."""
    notes: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a process did."""

    batches: Sequence[str]
    losses: Sequence[str]
    first_s: float
    """From the start of the process to the first loss."""
    items_per_s: float
    peak_bytes: int


def run_program(program: Program) -> Sequence[Row]:
    """Run all that the table says of a program."""
    source = find_source(program.origin, program.script)
    python = find_python(program.environment, program.packages)
    with tempfile.TemporaryDirectory(prefix="training-") as name:
        bench = _Bench(program, source, python, Path(name))
        return [bench.run()]


class _Bench:
    """A folder with the data, the copies of the program and the outputs of its runs."""

    def __init__(self, program: Program, source: Path, python: Path, folder: Path) -> None:
        self._program = program
        self._source = source
        self._python = python
        self._folder = folder
        self._runs = 0

    def run(self) -> Row:
        program = self._program
        data = self._folder / "data"
        data.mkdir()
        program.make_data(data)
        theirs = self._copy("theirs", program.fixed)
        ours = self._copy("ours", (*program.fixed, *program.edits))
        runs: dict[Path, list[Run]] = {theirs: [], ours: []}
        for _ in range(_ROUNDS):
            for script, found in runs.items():
                found.append(self._start(script))
        expected = runs[theirs][0]
        speed, memory = _compare_costs(runs[theirs], runs[ours])
        return {
            "program": program.name,
            "of": program.origin.label,
            "lines": str(_count_lines(self._copy("original", ()), self._copy("edited", program.edits))),
            "samples": _compare([expected.batches] * _ROUNDS, [run.batches for run in runs[ours]], "batches"),
            "loss": _compare([expected.losses] * _ROUNDS, [run.losses for run in runs[ours]], "steps"),
            "killed and resumed": self._kill_and_resume(theirs, ours, runs[ours][0]) if program.kill_at else "",
            "items/s": speed,
            "memory": memory,
            "notes": program.notes,
        }

    def _copy(self, name: str, edits: Sequence[Edit]) -> Path:
        """Copy the script's folder, make the edits and return the copy of the script."""
        script = self._folder / name / Path(self._program.script).name
        if not script.exists():
            shutil.copytree((self._source / self._program.script).parent, script.parent, ignore=_ignore_large)
            for edit in edits:
                _apply(edit, script.parent / (edit.file or script.name))
        return script

    def _start(self, script: Path, *, out: Path | None = None, kill_at: int = 0, resume: bool = False) -> Run:
        self._runs += 1
        record = self._folder / f"record-{self._runs}"
        log = self._folder / f"log-{self._runs}"
        if out is None:
            out = self._folder / f"out-{self._runs}"
        arguments = (*self._program.arguments, *(self._program.resume if resume else ()))
        filled = [text.format(data=self._folder / "data", out=out, workers=2) for text in arguments]
        paths = (ROOT / "tests/programs/training/recording", self._program.import_path and self._find_import(), ROOT)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path),
            "RECORD": str(record),
            "RECORDED_SCRIPT": str(script),
            "RECORD_KILL_AT": str(kill_at),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self._folder / "hf"),
            "CUDA_VISIBLE_DEVICES": "",
            "TOKENIZERS_PARALLELISM": "false",
        }
        started_s = time.monotonic()
        with log.open("w") as file:
            process = subprocess.Popen(
                [self._python, script, *filled],
                cwd=self._folder / "data" if self._program.runs_in_data else script.parent,
                env=environment,
                stdout=file,
                stderr=file,
            )
            with PssSampler(lambda: _list_tree(process.pid), period_s=0.5) as sampler:
                status = process.wait(timeout=_TIMEOUT_S)
        if status != (-signal.SIGKILL if kill_at else 0):
            raise RuntimeError(f"{script} ended with {status}:\n{log.read_text()[-3000:]}")
        _wait_until_gone(record)
        return _read(record, started_s, sampler.find_peak_bytes(0))

    def _find_import(self) -> Path:
        return self._source / self._program.import_path

    def _kill_and_resume(self, theirs: Path, ours: Path, whole: Run) -> str:
        """Kill and resume both. `whole` is a run of ours that nobody killed."""
        resumed = []
        for name, script in (("theirs", theirs), ("ours", ours)):
            out = self._folder / f"out-{name}"
            self._start(script, out=out, kill_at=self._program.kill_at)
            resumed.append(self._start(script, out=out, resume=True))
        texts = [f"{len(run.losses)} steps {_compare_rest(run, whole)}" for run in resumed]
        is_same = (resumed[0].losses, resumed[0].batches) == (resumed[1].losses, resumed[1].batches)
        return f"{texts[1]}; the original {'the same' if is_same else texts[0]}"


def _ignore_large(folder: str, names: list[str]) -> list[str]:
    """Leave out folders, and what is no code, beside a script: half of a package would hide the whole one."""
    return [name for name in names if not name.endswith(".py")]


def _apply(edit: Edit, file: Path) -> None:
    text = file.read_text()
    if (count := text.count(edit.anchor)) != 1:
        raise ValueError(f"{file.name} has {edit.anchor!r} {count} times; an anchor is there once")
    file.write_text(text.replace(edit.anchor, edit.new))


def _count_lines(original: Path, edited: Path) -> int:
    """Return how many lines of the edited folder are new or changed."""
    count = 0
    for file in edited.parent.rglob("*.py"):
        before = (original.parent / file.relative_to(edited.parent)).read_text().splitlines()
        changes = difflib.unified_diff(before, file.read_text().splitlines(), lineterm="", n=0)
        count += sum(line.startswith("+") and not line.startswith("+++") for line in changes)
    return count


def _compare(expected: Sequence[Sequence[str]], found: Sequence[Sequence[str]], what: str) -> str:
    count = len(expected[0])
    if expected == found:
        return f"equal: {count} {what}"
    same = min(sum(map(str.__eq__, *pair)) for pair in zip(expected, found, strict=True))
    repeated = ", ours the same in each run" if all(each == found[0] for each in found) else ""
    return f"{same} of {count} {what} equal{repeated}"


def _compare_rest(run: Run, whole: Run) -> str:
    count = len(run.losses)
    is_whole = (run.losses, run.batches) == (whole.losses[-count:], whole.batches[-count:])
    return f"{'as' if is_whole else 'other than'} without the kill"


def _compare_costs(theirs: Sequence[Run], ours: Sequence[Run]) -> tuple[str, str]:
    """Return the texts for speed and memory: ours beside theirs, and the ratio in each round."""
    ratios = [mine.items_per_s / other.items_per_s for mine, other in zip(ours, theirs, strict=True)]
    speeds = (median(run.items_per_s for run in runs) for runs in (ours, theirs))
    starts = (median(run.first_s for run in runs) for runs in (ours, theirs))
    sizes = (max(run.peak_bytes for run in runs) / _GIGABYTE for runs in (ours, theirs))
    speed = " beside ".join(f"{value:.0f}" for value in speeds)
    start = " beside ".join(f"{value:.0f} s" for value in starts)
    memory = " beside ".join(f"{value:.2f}" for value in sizes)
    return f"{speed}: {min(ratios):.2f} to {max(ratios):.2f} times; the first loss after {start}", f"{memory} GB"


def _read(record: Path, started_s: float, peak_bytes: int) -> Run:
    lines = [line.split() for line in record.read_text().splitlines()]
    batches = [line for line in lines if line[0] == "batch"]
    losses = [line for line in lines if line[0] == "loss"]
    times = [float(line[2]) for line in losses]
    items = sum(int(line[2]) for line in batches[1:])
    return Run(
        batches=[line[1] for line in batches],
        losses=[line[1] for line in losses],
        first_s=times[0] - started_s,
        items_per_s=items / (times[-1] - times[0]) if len(times) > 1 else 0.0,
        peak_bytes=peak_bytes,
    )


def _list_tree(pid: int) -> list[int]:
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return []


def _wait_until_gone(record: Path) -> None:
    """Wait for all processes of a run; those of a killed one end by themselves."""
    deadline_s = time.monotonic() + 30
    while left := [process.pid for process in psutil.process_iter() if _belongs(process, record)]:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"processes {left} are left of the run of {record}")
        time.sleep(0.1)


def _belongs(process: psutil.Process, record: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get("RECORD") == str(record)
    except psutil.Error:
        return False
