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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.common.turn import PssSampler, order
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
    check: Callable[[], object] = bool
    """Raises MissingSourceError if something else is missing on this machine."""
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
    program.check()
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
        scripts = {"theirs": theirs, "ours": ours}
        runs: dict[str, list[Run]] = {name: [] for name in scripts}
        for script in scripts.values():
            self._start(script)  # fills caches of data sets and of compiled modules, for both
        for number in range(_ROUNDS):
            for name in order(list(scripts), number):
                runs[name].append(self._start(scripts[name]))
        speed, memory = _compare_costs(runs["theirs"], runs["ours"])
        return {
            "program": program.name,
            "of": program.origin.label,
            "lines": str(_count_lines(self._copy("original", ()), self._copy("edited", program.edits))),
            "samples": compare(*([run.batches for run in runs[name]] for name in scripts), "batches"),
            "loss": compare(*([run.losses for run in runs[name]] for name in scripts), "steps"),
            "killed and resumed": self._kill_and_resume(scripts, runs) if program.kill_at else "",
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
        lines = record.read_text().splitlines()
        check_loader(lines, is_ours=script.parent.name == "ours")
        return _read(lines, started_s, sampler.find_peak_bytes(0))

    def _find_import(self) -> Path:
        return self._source / self._program.import_path

    def _kill_and_resume(self, scripts: Mapping[str, Path], runs: Mapping[str, Sequence[Run]]) -> str:
        """Kill and resume both sides, and compare each with its own run that nobody killed."""
        resumed = {}
        for name, script in scripts.items():
            out = self._folder / f"out-{name}"
            self._start(script, out=out, kill_at=self._program.kill_at)
            resumed[name] = self._start(script, out=out, resume=True)
        ours, theirs = (compare_rest(resumed[name], runs[name][0]) for name in ("ours", "theirs"))
        if ours != theirs:
            return f"{ours}; the original: {theirs}"
        first, second = ((run.losses, run.batches) for run in resumed.values())
        return f"both: {ours}" + (", and equal to each other" if first == second else "")


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


def compare(expected: Sequence[Sequence[str]], found: Sequence[Sequence[str]], what: str) -> str:
    """Compare the digests or losses of all runs of the original with those of all runs of ours.

    >>> compare([["a", "b"]] * 2, [["a", "b"]] * 2, "batches"), compare([["a", "b"]], [["a", "c"]], "batches")
    ('equal: 2 batches', '1 of 2 batches equal, ours the same in each run')

    Raises ValueError if there is nothing to compare.
    """
    counts = {len(each) for each in (*expected, *found)}
    if 0 in counts:
        raise ValueError(f"a run has no {what}")
    if any(each != expected[0] for each in expected):
        return f"the original has other {what} in each run"
    if len(counts) > 1:
        return f"{len(found[0])} {what}, the original {len(expected[0])}"
    if all(each == expected[0] for each in found):
        return f"equal: {len(expected[0])} {what}"
    same = min(sum(map(str.__eq__, expected[0], each)) for each in found)
    repeated = ", ours the same in each run" if all(each == found[0] for each in found) else ""
    return f"{same} of {len(expected[0])} {what} equal{repeated}"


def compare_rest(resumed: Run, whole: Run) -> str:
    """Compare a resumed run with the end of a run that nobody killed. Raises ValueError if it did not resume."""
    count = len(resumed.losses)
    if not 0 < count < len(whole.losses):
        raise ValueError(f"a resumed run has {count} steps, a whole one {len(whole.losses)}")
    has_batches, has_losses = resumed.batches == whole.batches[-count:], resumed.losses == whole.losses[-count:]
    if has_batches and not has_losses:
        return f"the same {count} batches as without the kill, other losses"
    is_same = has_batches and has_losses
    return f"{'the same' if is_same else 'other'} {count} steps {'as' if is_same else 'than'} without the kill"


def _compare_costs(theirs: Sequence[Run], ours: Sequence[Run]) -> tuple[str, str]:
    """Return the texts for speed and memory: ours beside theirs, and the ratio in each round."""
    ratios = [mine.items_per_s / other.items_per_s for mine, other in zip(ours, theirs, strict=True)]
    speeds = (median(run.items_per_s for run in runs) for runs in (ours, theirs))
    starts = (median(run.first_s for run in runs) for runs in (ours, theirs))
    sizes = (max(run.peak_bytes for run in runs) / _GIGABYTE for runs in (ours, theirs))
    speed = " beside ".join(f"{value:.{0 if value >= 10 else 2}f}" for value in speeds)
    start = " beside ".join(f"{value:.0f} s" for value in starts)
    memory = " beside ".join(f"{value:.2f}" for value in sizes)
    return f"{speed}: {min(ratios):.2f} to {max(ratios):.2f} times; the first loss after {start}", f"{memory} GB"


def check_loader(lines: Sequence[str], *, is_ours: bool) -> None:
    """Check that each training batch came from a loader of stagepipe, or none. Raises ValueError if it did not."""
    loaded = trained = 0
    for line in lines:
        loaded += line == "loaded"
        trained += line.startswith("batch")
        if is_ours and loaded < trained:
            raise ValueError(f"batch {trained} came from another loader")
    if loaded and not is_ours:
        raise ValueError("the original has a loader of stagepipe")


def _read(record: Sequence[str], started_s: float, peak_bytes: int) -> Run:
    lines = [line.split() for line in record]
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
