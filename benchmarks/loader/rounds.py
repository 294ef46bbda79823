"""The rounds: each turn of a contestant is a new process, and no other contestant runs meanwhile."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from benchmarks.common.turn import ROOT, make_environment, order
from benchmarks.loader.contest import HEADER_ONLY, REFERENCE, Answer, Job

_DEADLINE_S = 600.0
_SHOWN_LINES = 12
"""Lines of a failed contestant's stderr in the message."""


@dataclass
class Row:
    """A contestant in one part, with an answer for each round."""

    part: str
    contestant: str
    answers: list[Answer] = field(default_factory=list)

    def values(self, name: str) -> list[float]:
        """Return one figure, round by round."""
        return [float(getattr(answer, name)) for answer in self.answers]


def measure(
    job: Job, names: Sequence[str], rounds: int, corrupt: str | None, show_progress: Callable[[str], None]
) -> list[Row]:
    """Measure the rows of `job`'s part. Raise SystemExit if one fails twice or delivers wrong batches."""
    rows = {name: Row(job.part, name) for name in names}
    try:
        expected = _run(replace(job, contestant=REFERENCE)).splitlines()
        for round_number in range(rounds):
            for name in order(names, round_number):
                show_progress(f"{job.part}, round {round_number + 1} of {rounds}: {name}")
                answer = _turn(replace(job, contestant=name, corrupt=name == corrupt))
                _check(job, name, answer.digests, expected)
                rows[name].answers.append(answer)
    except _ProcessError as error:
        raise SystemExit(str(error)) from None
    return list(rows.values())


class _ProcessError(Exception):
    """The process of a turn died, or did not end. The message says which and how."""


def _turn(job: Job) -> Answer:
    """Take a turn; once more, with a line on stderr, if its process dies: a run of many minutes shall not end there."""
    before = _children_cpu_s()
    try:
        text = _run(job)
    except _ProcessError as error:
        print(f"{error}\nThis turn is repeated.", file=sys.stderr, flush=True)
        before = _children_cpu_s()
        text = _run(job)
    return replace(Answer(**json.loads(text.splitlines()[-1])), life_cpu_s=_children_cpu_s() - before)


def _children_cpu_s() -> float:
    """Return the CPU seconds of all ended descendants: each was waited for, also by its own parent."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(job: Job) -> str:
    command = [sys.executable, "-m", "benchmarks.loader.turn", json.dumps(asdict(job))]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
            env=make_environment(ROOT / "configs"),  # of quickstart_ops
        )
    except subprocess.TimeoutExpired as expired:
        message = f"{job.part}, {job.contestant}: did not finish within {_DEADLINE_S:.0f} s"
        raise _ProcessError(message) from expired
    if done.returncode:
        last_lines = "\n".join(done.stderr.splitlines()[-_SHOWN_LINES:])
        message = f"{job.part}, {job.contestant}: its process exited with status {done.returncode}\n{last_lines}"
        raise _ProcessError(message)
    return done.stdout


def _check(job: Job, name: str, received: list[str], expected: list[str]) -> None:
    if name == HEADER_ONLY:  # it writes only first elements
        received, expected = ([text.rpartition(" ")[0] for text in digests] for digests in (received, expected))
    wrong = [index for index, pair in enumerate(zip(received, expected, strict=False)) if pair[0] != pair[1]]
    if len(received) != len(expected):
        message = f"{job.part}, {name}: received {len(received)} batches, expected {len(expected)}"
        raise SystemExit(message)
    if wrong:
        index = wrong[0]
        message = f"{job.part}, {name}: batch {index} is wrong: received {received[index]}, expected {expected[index]}"
        raise SystemExit(message)
