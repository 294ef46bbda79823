"""Who is measured when: round by round, each contestant's turn in a fresh process, and nothing else alive meanwhile."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from loader_.contest import IN_PLACE, REFERENCE
from loader_.job import Answer, Job
from side_by_side.turns import order

_FOLDERS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "configs")]
"""Where `loader_` and `quickstart_ops` are imported from, by the contestants and by their workers."""
_DEADLINE_S = 240.0
_SHOWN = 12
"""Lines of a failed contestant's stderr."""


@dataclass
class Row:
    """A contestant in one part, with an answer for each round."""

    part: str
    contestant: str
    answers: list[Answer] = field(default_factory=list)

    def values(self, name: str) -> list[float]:
        """One figure, round by round."""
        return [float(getattr(answer, name)) for answer in self.answers]


def measure(job: Job, names: Sequence[str], rounds: int, corrupt: str | None, say: Callable[[str], None]) -> list[Row]:
    """The rows of `job`'s part. SystemExit where a contestant fails, or what it delivers is wrong."""
    rows = {name: Row(job.part, name) for name in names}
    expected = _run(replace(job, contestant=REFERENCE)).splitlines()
    for number in range(rounds):
        for name in order(names, number):
            say(f"{job.part}, round {number + 1} of {rounds}: {name}")
            answer = _turn(replace(job, contestant=name, corrupt=name == corrupt))
            _check(job, name, answer.digests, expected)
            rows[name].answers.append(answer)
    return list(rows.values())


def _turn(job: Job) -> Answer:
    before = _children_cpu_s()
    answer = Answer(**json.loads(_run(job).splitlines()[-1]))
    return replace(answer, life_cpu_s=_children_cpu_s() - before)


def _children_cpu_s() -> float:
    """Of all processes below this one that have ended: they are waited for, and so are those that they started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(job: Job) -> str:
    path = os.pathsep.join([*_FOLDERS, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "loader_.child", job.dumps()]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired as expired:
        message = f"{job.part}, {job.contestant}: not done within {_DEADLINE_S:.0f} s"
        raise SystemExit(message) from expired
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-_SHOWN:])
        message = f"{job.part}, {job.contestant}: its process ended with {done.returncode}\n{last}"
        raise SystemExit(message)
    return done.stdout


def _check(job: Job, name: str, found: list[str], expected: list[str]) -> None:
    if name == IN_PLACE:  # it writes first elements alone
        found, expected = ([text.rpartition(" ")[0] for text in each] for each in (found, expected))
    wrong = [at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]]
    if len(found) != len(expected):
        message = f"{job.part}, {name}: {len(found)} batches came instead of {len(expected)}"
        raise SystemExit(message)
    if wrong:
        at = wrong[0]
        message = f"{job.part}, {name}: batch {at} came as {found[at]}, and is {expected[at]}"
        raise SystemExit(message)
