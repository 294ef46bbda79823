"""Runs the programs of a job one after the other: what they take, and what is left of their rows after a kill.

A program is a list of commands in a folder of its own. It is killed at a random moment, and run again as its tool's
documentation says. The rows in its folder are then compared with those of a run that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq

import stagepipe
from benchmarks.common.turn import (
    PssSampler,
    adopt_orphans,
    end_processes,
    last_line,
    list_descendant_pids,
    make_environment,
    measure_ended_children_s,
    order,
    turn_folder,
)

CONTESTANTS = Path(__file__).parent / "contestants"
"""The programs: our configs, and scripts that call a tool's public interface in its own environment."""
STAGEPIPE = (str(Path(sys.executable).with_name("stagepipe")),)
_SAMPLE_PERIOD_S = 0.25
_POLL_S = 0.05
_LIMIT_S = 240.0
_START_S = 20.0
_TOLERANCE = 1e-4
"""Relative and absolute, of a number."""
_EQUAL = "equal"
_LEFT_S = 3.0
"""How long the processes of a killed program may stay until they are killed as well, before the program runs again."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a program has written: its rows, the items that failed with the reason, and files that cannot be read."""

    rows: Sequence[tuple[str, Any]]
    failures: Sequence[tuple[str, str]] = ()
    unreadable: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Program:
    """A contestant. `resume` is run after a kill; `is_worker` says which of its processes does the work.

    `read` returns what it has written in its folder. Its commands run there; `{FOLDER}` in its environment is replaced.
    """

    name: str
    commands: Sequence[Sequence[str]]
    resume: Sequence[Sequence[str]] = ()
    read: Callable[[Path], Output]
    is_worker: Callable[[str], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a run took, and how it ended. `left`: processes that lived on after its main process was killed."""

    seconds: float
    cpu_s: float
    pss_bytes: int
    failure: str
    was_killed: bool
    left: int


def take_turn(
    program: Program,
    folder: Path,
    *,
    kill: str = "",
    is_time: Callable[[], bool] = bool,
    resumes: bool = False,
    limit_s: float = _LIMIT_S,
) -> Turn:
    """Run a program. With `kill` its "main" process or a "worker" gets SIGKILL as soon as `is_time`."""
    adopt_orphans()
    _collect_orphans()
    others = list_descendant_pids()
    begin_s, cpu_begin_s = time.monotonic(), measure_ended_children_s()
    failure, was_killed = "", False
    commands = (program.resume or program.commands) if resumes else program.commands
    given = {name: text.replace("{FOLDER}", str(folder)) for name, text in program.environment.items()}
    environment = {**make_environment(), **given}
    log = folder / f"log-{time.time_ns()}.txt"
    with PssSampler(lambda: list_descendant_pids() - others, _SAMPLE_PERIOD_S) as sampler, log.open("wb") as out:
        for command in commands:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
            while process.poll() is None:
                now_s = time.monotonic() - begin_s
                if kill and not was_killed and is_time():
                    was_killed = _kill(process, program, only_worker=kill == "worker")
                if now_s > limit_s:
                    failure = f"hangs (no end within {limit_s:.0f} s)"
                    process.kill()
                time.sleep(_POLL_S)
            if process.returncode:
                failure = failure or last_line(log.read_text(errors="replace"))
                break
        seconds = time.monotonic() - begin_s
        if kill == "main" and was_killed:
            time.sleep(_LEFT_S)
    ours = [each for each in psutil.Process().children(recursive=True) if each.pid not in others]
    left = [each for each in ours if _is_alive(each)]
    end_processes(left)
    _collect_orphans()
    return Turn(
        seconds=seconds,
        cpu_s=measure_ended_children_s() - cpu_begin_s,
        pss_bytes=sampler.find_peak_bytes(begin_s),
        failure=failure,
        was_killed=was_killed,
        left=len(left),
    )


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _collect_orphans() -> None:
    """Wait for the adopted processes that have ended, so that their processor time counts."""
    for child in psutil.Process().children():
        if not _is_alive(child):
            with suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)


def _kill(process: subprocess.Popen[bytes], program: Program, *, only_worker: bool) -> bool:
    """Send SIGKILL to the main process, or to the worker that has worked most; return whether there was one."""
    if not only_worker:
        process.kill()
        return True
    used_s = {}
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if program.is_worker(f"{child.name()} {' '.join(child.cmdline())}"):
                    used_s[child] = sum(child.cpu_times()[:2])
    if used_s:
        max(used_s, key=lambda child: used_s[child]).send_signal(signal.SIGKILL)
    return bool(used_s)


@dataclass(kw_only=True)
class Result:
    """What was found of a program: its turns, the output of the first, how others differ, a sentence for each kill."""

    program: Program
    turns: list[Turn] = field(default_factory=list)
    output: Output = field(default_factory=lambda: Output(rows=()))
    differences: list[str] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median of its turns."""
        return median(turn.seconds for turn in self.turns)

    def make_row(self, items: int) -> dict[str, str]:
        """Return the cells that all jobs have."""
        return {
            "tool": self.program.name,
            "items/s": " ".join(f"{items / turn.seconds:.3g}" for turn in self.turns),
            "CPU": f"{median(turn.cpu_s for turn in self.turns):.1f} s",
            "memory": f"{median(turn.pss_bytes for turn in self.turns) / 1e6:.0f} MB",
            "killed and resumed": "; ".join(self.kills),
            "notes": "; ".join(filter(None, [self.program.notes, *self.differences])),
        }


def hold_contest(
    programs: Sequence[Program],
    *,
    rounds: int = 2,
    kills: Sequence[str] = ("main", "main", "worker"),
    prepare: Callable[[Path], None],
    count_calls: Callable[[Path], Mapping[Any, int]],
    items: int,
    has_unique_keys: bool = True,
    seed: int = 17,
) -> list[Result]:
    """Let all programs take turns, then kill each.

    `prepare` puts what they read into a folder. `count_calls` returns how often each of the `items` has been worked on
    since then: a program is killed at a random share of them, and what it did twice is reported. What a program writes
    in its first turn is what its other runs are compared with.
    """
    results = {program.name: Result(program=program) for program in programs}
    for number in range(rounds):
        for name in order(list(results), number):
            with turn_folder() as folder:
                prepare(folder)
                result = results[name]
                turn = take_turn(result.program, folder)
                if turn.failure:
                    raise RuntimeError(f"{name} failed: {turn.failure}")
                result.turns.append(turn)
                output = result.program.read(folder)
                check_undisturbed(name, output, has_unique_keys=has_unique_keys)
                if number == 0:
                    result.output = output
                differences = [each for each in describe_rows(result.output, output) if not each.endswith(_EQUAL)]
                result.differences += [f"round {number + 1}: {each}" for each in differences]
                print(f"{name}: {turn}", flush=True)  # noqa: T201 - how far it is
    for result in results.values():
        generator = random.Random(seed)
        for kind in kills:
            with turn_folder() as folder:
                prepare(folder)
                share = generator.uniform(0.3, 0.8)
                result.kills.append(_kill_and_resume(result, folder, kind, share, count_calls, items))
                print(f"{result.program.name}: {result.kills[-1]}", flush=True)  # noqa: T201
    return list(results.values())


def _kill_and_resume(  # noqa: PLR0917 - the settings of a kill
    result: Result,
    folder: Path,
    kind: str,
    share: float,
    count_calls: Callable[[Path], Mapping[Any, int]],
    items: int,
) -> str:
    limit_s = 4 * result.seconds + _START_S
    is_time = lambda: len(count_calls(folder)) >= share * items  # noqa: E731
    killed = take_turn(result.program, folder, kill=kind, is_time=is_time, limit_s=limit_s)
    if not killed.was_killed:
        return f"{kind}: ended before its kill"
    words = [f"{kind} killed at {share:.0%}"]
    if killed.left and kind == "main":
        words.append(f"{killed.left} processes lived on")
    if kind == "worker":
        words.append(f"ends: {killed.failure}" if killed.failure else "goes on")
    if killed.failure or kind == "main":
        resumed = take_turn(result.program, folder, resumes=True)
        words.append(f"resume fails: {resumed.failure}" if resumed.failure else "resumed")
    words += describe_rows(result.output, result.program.read(folder))
    words.append(f"{sum(count > 1 for count in count_calls(folder).values())} computed twice")
    return ", ".join(words)


def check_undisturbed(name: str, output: Output, *, has_unique_keys: bool = True) -> None:
    """Raise RuntimeError if a run that nobody disturbed has no rows, rows twice, or files that cannot be read."""
    doubled = len(output.rows) - len({key for key, _ in output.rows}) if has_unique_keys else 0
    if not output.rows or doubled or output.unreadable:
        raise RuntimeError(
            f"{name}, undisturbed: {len(output.rows)} rows, {doubled} of them doubled, "
            f"{len(output.unreadable)} unreadable files"
        )


def describe_rows(expected: Output, found: Output) -> Iterator[str]:
    """Yield what is lost, doubled, not expected at all, of another value, and unreadable."""
    for what, wanted, got in (("rows", expected.rows, found.rows), ("reasons", expected.failures, found.failures)):
        if not wanted and not got:
            continue
        values, keys, wanted_keys = dict(wanted), Counter(key for key, _ in got), Counter(key for key, _ in wanted)
        unknown = [key for key, _ in got if key not in values]
        counts = {
            "lost": (wanted_keys - keys).total(),
            "doubled": (keys - wanted_keys).total() - len(unknown),
            "new": len(unknown),
            "other": sum(key in values and not is_same(values[key], value) for key, value in got),
        }
        found_words = [f"{count} {name}" for name, count in counts.items() if count]
        yield f"{what}: {', '.join(found_words) or _EQUAL}"
    if found.unreadable:
        yield f"{len(found.unreadable)} unreadable files"


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal; arrays may differ in last bits, which depend on the batch."""
    if isinstance(one, np.ndarray):
        return np.shape(one) == np.shape(other) and np.allclose(one, other, _TOLERANCE, _TOLERANCE)
    return bool(one == other)


def find_version(python: Path, package: str) -> str:
    """Return the version of a package in another environment."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def name_stagepipe() -> str:
    """Return the name of our own program."""
    return f"stagepipe {stagepipe.__version__}"


def is_stagepipe_worker(line: str) -> bool:
    """Whether a process, by its name and command line, is a worker of stagepipe."""
    return line.startswith("sp:")


def count_notes(folder: Path) -> Counter[str]:
    """Return how often each item was worked on, by the file that `contestants/work.py` writes."""
    path = folder / "calls.txt"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def read_parquet(folder: Path, column: str) -> Output:
    """Return a column of all Parquet files in `out/`, by the name of the file in the column `path`."""
    rows: list[tuple[str, Any]] = []
    unreadable = []
    for path in sorted((folder / "out").rglob("*.parquet")):
        try:
            table = pq.read_table(path, columns=["path", column])
        except (OSError, ValueError):
            unreadable.append(path.name)
            continue
        names = table["path"].to_pylist()
        rows += [(Path(name).name, np.array(row)) for name, row in zip(names, table[column].to_pylist(), strict=True)]
    return Output(rows=rows, unreadable=unreadable)


def read_shards(folder: Path) -> tuple[list[tuple[str, dict[str, bytes]]], list[str]]:
    """Return the samples of all shards of WebDataset, each a key and its files, and the names of unreadable shards."""
    samples: list[tuple[str, dict[str, bytes]]] = []
    unreadable = []
    for path in sorted(folder.glob("*.tar")):
        found: dict[str, dict[str, bytes]] = {}
        try:
            with tarfile.open(path) as shard:
                for member in shard:
                    key, _, extension = member.name.partition(".")
                    found.setdefault(key, {})[extension] = shard.extractfile(member).read()  # type: ignore[union-attr]
        except (tarfile.TarError, OSError):
            unreadable.append(path.name)
        else:
            samples += found.items()
    return samples, unreadable


def describe_differences(first: Result, result: Result, items: int) -> str:
    """Return how many rows there are, and how far their values are from those of the first."""
    expected, found = dict(first.output.rows), dict(result.output.rows)
    text = f"{len(found)} of {items}"
    if unknown := len(found.keys() - expected.keys()):
        text += f", {unknown} of other names"
    if result is not first and (names := sorted(expected.keys() & found.keys())):
        largest = np.max([np.abs(np.subtract(expected[name], found[name])).max() for name in names])
        text += f", the same within {largest:.0e}"
    return text
