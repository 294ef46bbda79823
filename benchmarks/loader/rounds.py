"""The rounds: each turn of a contestant is a new process, and no other contestant runs meanwhile."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.common.turn import ROOT, TurnError, order, run_turn
from benchmarks.common.usage import measure_ended_children_s
from benchmarks.loader.contest import HEADER_ONLY, REFERENCE, Job

_DEADLINE_S = 600.0


def measure(
    job: Job, names: Sequence[str], rounds: int, corrupt: str, show_progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Measure the rows of `job`'s part. Raise SystemExit if one fails twice or delivers wrong batches."""
    os.environ["PYTHONPATH"] = str(ROOT / "configs")  # of quickstart_ops
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    expected = _run(replace(job, contestant=REFERENCE))["digests"]
    for round_number in range(rounds):
        for name in order(names, round_number):
            show_progress(f"{job.part}, round {round_number + 1} of {rounds}: {name}")
            answer = _turn(replace(job, contestant=name, corrupt=name == corrupt))
            _check(job, name, answer["digests"], expected)
            answers[name].append(answer)
    return [{"part": job.part, "contestant": name, "answers": of_one} for name, of_one in answers.items()]


def _turn(job: Job) -> dict[str, Any]:
    """Take a turn; once more, with a line on stderr, if its process dies: a run of many minutes shall not end there."""
    before = measure_ended_children_s()
    try:
        answer = run_turn("benchmarks.loader.turn", asdict(job), _DEADLINE_S)
    except TurnError as error:
        print(f"{job.part}, {job.contestant}: {error}\nThis turn is repeated.", file=sys.stderr, flush=True)
        before = measure_ended_children_s()
        answer = _run(job)
    return {**answer, "life_cpu_s": measure_ended_children_s() - before}


def _run(job: Job) -> dict[str, Any]:
    try:
        return run_turn("benchmarks.loader.turn", asdict(job), _DEADLINE_S)
    except TurnError as error:
        raise SystemExit(f"{job.part}, {job.contestant}: {error}") from None


def _check(job: Job, name: str, received: list[str], expected: list[str]) -> None:
    if name == HEADER_ONLY:  # it writes only first elements
        received, expected = ([text.rpartition(" ")[0] for text in digests] for digests in (received, expected))
    if len(received) != len(expected):
        message = f"{job.part}, {name}: received {len(received)} batches, expected {len(expected)}"
        raise SystemExit(message)
    for index, (own, right) in enumerate(zip(received, expected, strict=True)):
        if own != right:
            message = f"{job.part}, {name}: batch {index} is wrong: received {own}, expected {right}"
            raise SystemExit(message)
