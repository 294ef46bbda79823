"""Whole jobs by stagepipe and by what its users would otherwise pick, in interleaved rounds of one run.

    python -m benchmarks.peers [--quick] [--jobs images,models] [--only "stagepipe; DataLoader"] [--json FILE]

    images      JPEG files, decoded, resized, as float32, in batches of 64 x 3 x 224 x 224
    thumbnails  JPEG files, decoded, resized, each written to an npz file
    tensors     50,000 tensors of 3 x 32 x 32 float32 in memory, in batches of 256
    tokens      16 to 512 tokens, padded, in batches of 64
    clips       16 x 3 x 224 x 224 float32, through four steps of NumPy
    models      vectors through three models of 400 MB

Each contestant runs the same functions, by the advice of its own documentation, with as many workers as CPUs. stagepipe
is cut as `auto` does, and its steps write to `stagepipe.empty`. A turn is a new process. In round 0, which is not
timed, its samples are compared with those of a plain loop (bytes, dtypes, shapes; order where it is promised), and its
memory is sampled every 0.25 s. A timed turn takes batches for 2 s after a warm-up of 0.5 s, and for up to 6 s where it
has fewer than 34 by then; in *models* for 16 s. The caller does nothing with a batch, not even read it. NumPy's and
torch's own threads are limited to one in every process, also in the plain loop and beside SPDL's threads. "First item"
runs from the start of the program, imports included. "CPU" is that of all processes. A turn that fails loses its round;
two in a row exclude the contestant from the job. One with less than half the fastest's items/s in each of three rounds
takes no more.
A job is a section of the file, so that a run can be made job by job.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.command import add_names, finish, machine, machine_line, make_parser, repeat_command
from benchmarks.common.turn import TurnError, adopt_orphans, order, run_turn
from benchmarks.peers.contestants import CONTESTANTS, PACKAGES, REFERENCE, Contestant
from benchmarks.peers.jobs import JOBS
from benchmarks.peers.make_page import is_far_behind, judge, list_losses, make_table
from benchmarks.peers.results import Results
from benchmarks.peers.turn import find_difference

_ROUNDS = 6
_QUICK_ROUNDS = 2
_SETTINGS = {"min_s": 2.0, "max_s": 6.0}
_QUICK_SETTINGS = {"min_s": 0.5, "max_s": 1.0}
_INSPECTED_BATCHES = 3
_INSPECTED_ITEMS = 8
"""For a job without batches."""
_LIMIT_S = 60.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class _Turn:
    job: str
    contestant: str
    number: int  # 0: the round that inspects


def main(arguments: Sequence[str]) -> None:
    """Take the turns that are missing in the file, and print the tables."""
    options = _parse(arguments)
    os.environ.update(_ONE_THREAD)
    adopt_orphans()
    described = machine(PACKAGES)
    about: dict[str, Any] = {
        "command": repeat_command("peers"),
        "commit": described.pop("commit"),
        "settings": _QUICK_SETTINGS if options.quick else _SETTINGS,
        "machine": described,
    }
    results = Results(options.json, about, options.jobs, is_fresh=options.fresh)
    print(machine_line(about["machine"]), f"Commit {about['commit']}. Repeat: {about['command']}", sep="\n", flush=True)
    rounds = (_QUICK_ROUNDS if options.quick else _ROUNDS) if options.rounds is None else options.rounds
    for turn in _schedule(options.jobs, options.only, rounds):
        _take(turn, results)
    for job in options.jobs:
        print(f"\n{job}\n", *make_table(results, job), "", *judge(results, job), *list_losses(results, job), sep="\n")
    finish(None, {})


def _schedule(jobs: Sequence[str], names: Sequence[str], rounds: int) -> Iterator[_Turn]:
    """Yield the turns job by job. The plain loop comes first in round 0: the others are compared with it."""
    for job in jobs:
        able = [name for name in names if CONTESTANTS[name].can_do(job)]
        for number in range(rounds + 1):
            names_in_order = order(able, number) if number else list(dict.fromkeys((REFERENCE, *able)))
            for name in names_in_order:
                yield _Turn(job, name, number)


def _take(turn: _Turn, results: Results) -> None:
    """Take a turn that the results lack. An inspection is tried again, for its contestant cannot be timed without."""
    contestant = CONTESTANTS[turn.contestant]
    place = (turn.job, turn.contestant, turn.number)
    if is_far_behind(results, turn.job, turn.contestant):
        return
    while not results.has(*place) and not results.find_exclusion(turn.job, turn.contestant):
        print(f"{turn.job}, round {turn.number}: {turn.contestant}", file=sys.stderr, flush=True)
        begin_s = time.monotonic()
        try:
            figures = _run(turn, contestant, results.describe(turn.job)["settings"])
            if turn.number == 0:
                _check(contestant, figures, results.collect(turn.job)[REFERENCE])
        except TurnError as error:
            print(error, file=sys.stderr, flush=True)
            results.add(*place, reason=str(error))
        else:
            took_s = round(time.monotonic() - begin_s, 1)
            results.add(*place, figures=figures, took_s=took_s, load=round(os.getloadavg()[0], 1))


def _run(turn: _Turn, contestant: Contestant, settings: dict[str, float]) -> dict[str, Any]:
    if contestant.missing_package:
        message = f"{contestant.missing_package} is not installed"
        raise TurnError(message)
    job = JOBS[turn.job]
    inspected = (_INSPECTED_BATCHES * job.batch or _INSPECTED_ITEMS) if turn.number == 0 else 0
    request = {
        **settings,
        **(dict.fromkeys(settings, settings["min_s"] * job.window) if job.window > 1 else {}),
        "job": turn.job,
        "framework": contestant.run,
        "workers": len(os.sched_getaffinity(0)),
        "started_s": time.monotonic(),
        "inspected": inspected,
    }
    return run_turn("benchmarks.peers.turn", request, _LIMIT_S, samples_memory=turn.number == 0)


def _check(contestant: Contestant, own: dict[str, Any], reference: dict[str, dict[int, int]]) -> None:
    """Raise TurnError if the contestant delivered something else than the plain loop."""
    if contestant.name == REFERENCE:
        return
    if not reference:
        message = f"nothing to compare with: {REFERENCE} has failed"
        raise TurnError(message)
    expected = {key: reference[key][0] for key in ("inspected", "forms", "samples", "batches")}
    if difference := find_difference(own, expected, is_ordered=contestant.is_ordered, own_pixels=contestant.own_pixels):
        message = f"delivered {difference} than the plain loop"
        raise TurnError(message)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(__doc__, rounds=None)
    parser.set_defaults(json=Path("runs/peers.json"))
    parser.add_argument("--quick", action="store_true", help="two rounds of short turns")
    add_names(parser, "--jobs", list(JOBS), "job")
    add_names(parser, "--only", list(CONTESTANTS), "contestant", separator=";")
    parser.add_argument("--fresh", action="store_true", help="start these jobs over; others of the file stay")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
