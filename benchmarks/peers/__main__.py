"""Compare whole jobs of stagepipe and of alternative tools, in interleaved rounds of one run.

    python -m benchmarks.peers [--quick] [--jobs images,models] [--only "stagepipe; DataLoader"] [--json FILE]
    python -m benchmarks.peers --page   # fill the tables of docs/peers.md from benchmarks/results/peers.json

    images      JPEG files, decoded, resized, as float32, in batches of 64 x 3 x 224 x 224
    thumbnails  JPEG files, decoded, resized, each written to an npz file
    tensors     50,000 tensors of 3 x 32 x 32 float32 in memory, in batches of 256
    tokens      16 to 512 tokens, padded, in batches of 64
    clips       16 x 3 x 224 x 224 float32, through four steps of NumPy
    models      vectors through three models of 400 MB

Each contestant runs the same functions, as its own documentation advises, with as many workers as CPUs. stagepipe's
layout is the one of `auto`, and its steps write to `stagepipe.empty`. A turn is a new process. In round 0, which is not
timed, its samples are compared with the samples of a plain loop (bytes, dtypes, shapes; order if it is promised), and
its memory is sampled every 0.25 s. A timed turn takes batches for 2 s after a warm-up of 0.5 s, and for up to 6 s if it
has fewer than 34 by then; in *models* for 16 s. The caller does not even read a batch. NumPy's and torch's own threads
are limited to one in every process, including the plain loop and SPDL's threads. "First item" counts from the start of
the program, imports included. "CPU" is the time of all processes. A turn that fails loses its round; two in a row
exclude the contestant from the job. A contestant with less than half the fastest's items/s in each of three rounds
takes no more turns. A job is a section of the file, so that a run can be made job by job.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.command import (
    add_names,
    finish,
    is_same_machine,
    machine,
    machine_line,
    make_parser,
    repeat_command,
    replace_text,
)
from benchmarks.common.figures import (
    VERDICTS,
    Estimate,
    compare,
    estimate,
    find_coverage,
    format_seconds,
    format_waits,
    pool_waits,
    quotient,
    ratio,
)
from benchmarks.common.page import fill, format_row
from benchmarks.common.page import make_table as make_rows
from benchmarks.common.turn import FIGURES, ROOT, TurnError, adopt_orphans, find_tool_python, order, run_turn
from benchmarks.peers import CONTESTANTS, OURS, PACKAGES, REFERENCE, Contestant
from benchmarks.peers.jobs import JOBS
from benchmarks.peers.turn import find_difference

RESULTS, PAGE = FIGURES / "peers.json", ROOT / "docs" / "peers.md"
_ROUNDS = 6
_QUICK_ROUNDS = 2
_SETTINGS = {"min_s": 2.0, "max_s": 6.0}
_QUICK_SETTINGS = {"min_s": 0.5, "max_s": 1.0}
_INSPECTED_BATCHES = 3
_INSPECTED_ITEMS = 8
"""Number of inspected items of a job without batches."""
_LIMIT_S = 60.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class _Turn:
    job: str
    contestant: str
    number: int  # 0: the inspection round


def main(arguments: Sequence[str]) -> None:
    """Take the turns that are missing in the file, and print the tables."""
    options = _parse(arguments)
    if options.page:
        PAGE.write_text(make_page(RESULTS, PAGE.read_text()))
        return
    os.environ.update(_ONE_THREAD)
    adopt_orphans()
    described = machine(PACKAGES)
    described["versions"] |= {
        name: version
        for contestant in map(CONTESTANTS.__getitem__, options.only)
        for name, _, version in (requirement.partition("==") for requirement in contestant.requirements)
        if version
    }
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
    """Yield the turns job by job. In round 0, the plain loop comes first, because the others are compared with it."""
    for job in jobs:
        able = [name for name in names if CONTESTANTS[name].can_do(job)]
        for number in range(rounds + 1):
            names_in_order = order(able, number) if number else list(dict.fromkeys((REFERENCE, *able)))
            for name in names_in_order:
                yield _Turn(job, name, number)


def _take(turn: _Turn, results: Results) -> None:
    """Take a turn that is missing in the results. Retry a failed inspection: without one, a contestant is not timed."""
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
        "inspected": inspected,
    }
    python = find_tool_python(*contestant.requirements) if contestant.requirements else ""
    request["started_s"] = time.monotonic()
    return run_turn("benchmarks.peers.turn", request, _LIMIT_S, samples_memory=turn.number == 0, python=python)


def _check(contestant: Contestant, own: dict[str, Any], reference: dict[str, dict[int, int]]) -> None:
    """Raise TurnError if the contestant's samples differ from the plain loop's."""
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
    parser.add_argument("--page", action="store_true", help=f"measure nothing; fill {PAGE.name} from {RESULTS.name}")
    return parser.parse_args(arguments)


SCHEMA = "stagepipe.peers/2"
_MAX_FAILURES = 2
"""Maximum number of failures in a row."""


class Results:
    """The turns by job and contestant. A turn has figures, or the reason for their absence.

    A job is a section of the file, with the commit, the machine and the settings of its turns.
    """

    def __init__(
        self, path: Path, about: dict[str, Any] | None = None, jobs: Sequence[str] = (), *, is_fresh: bool = False
    ) -> None:
        """Read the file. Each of `jobs` continues if its turns have the same commit, settings, machine and versions."""
        self._path = path
        self._sections: dict[str, dict[str, Any]] = {}
        if path.exists():
            document = json.loads(path.read_text())
            self._sections = document["jobs"] if document["schema"] == SCHEMA else {}
        for job in jobs:
            if is_fresh or job not in self._sections or not _can_go_on(self._sections[job]["about"], about or {}):
                self._sections[job] = {"about": about, "turns": []}

    @property
    def jobs(self) -> list[str]:
        """The jobs of the file, with or without turns."""
        return list(self._sections)

    def describe(self, job: str) -> dict[str, Any]:
        """Return the commit, the command, the settings and the machine of a job's turns."""
        about: dict[str, Any] = self._sections[job]["about"]
        return about

    def has(self, job: str, contestant: str, number: int) -> bool:
        """Return whether this turn is done. A failed inspection (round 0) is not: a contestant needs one."""
        turns = [turn for turn in self._of(job, contestant) if turn["round"] == number]
        return any(number or "figures" in turn for turn in turns)

    def add(self, job: str, contestant: str, number: int, **figures: Any) -> None:
        """Add a turn, and write the file."""
        self._sections[job]["turns"].append({"contestant": contestant, "round": number, **figures})
        replace_text(self._path, self._format())

    def find_exclusion(self, job: str, contestant: str) -> str:
        """Return why a contestant takes no more turns in a job, or "": its last two turns failed."""
        last = self._of(job, contestant)[-_MAX_FAILURES:]
        reasons = [turn["reason"] for turn in last if "reason" in turn]
        return reasons[-1] if len(reasons) == _MAX_FAILURES else ""

    def list_failures(self, job: str, contestant: str) -> list[tuple[int, str]]:
        """Return the round and the reason of each failed turn."""
        return [(turn["round"], turn["reason"]) for turn in self._of(job, contestant) if "reason" in turn]

    def collect(self, job: str) -> dict[str, dict[str, dict[int, Any]]]:
        """Return the figures by contestant, name and round; round 0 is the inspection."""
        found: dict[str, dict[str, dict[int, Any]]] = defaultdict(lambda: defaultdict(dict))
        for turn in self._sections[job]["turns"]:
            for name, value in turn.get("figures", {}).items():
                found[turn["contestant"]][name][turn["round"]] = value
        return found

    def _of(self, job: str, contestant: str) -> list[dict[str, Any]]:
        return [turn for turn in self._sections[job]["turns"] if turn["contestant"] == contestant]

    def _format(self) -> str:
        """Format one turn per line."""
        sections = []
        for job, section in self._sections.items():
            turns = ",\n".join(map(json.dumps, section["turns"]))
            about = json.dumps(section["about"])
            sections.append(f'{json.dumps(job)}: {{"about": {about}, "turns": [\n{turns}\n]}}')
        return f'{{"schema": "{SCHEMA}", "jobs": {{\n' + ",\n".join(sections) + "\n}}\n"


def _can_go_on(before: dict[str, Any], about: dict[str, Any]) -> bool:
    same = all(before[key] == about[key] for key in ("commit", "settings"))
    return same and is_same_machine(before["machine"], about["machine"])


_CLOSE = 0.95
_MAX_CPU = 1.15
SHORT_ROUNDS = 3
"""Number of rounds of a contestant that is far behind, because its turns take as long as any other's."""
_HEADER = (
    "",
    "items/s",
    "times stagepipe",
    "CPU for an item",
    "first item",
    "wait for a batch, all rounds",
    "peak memory (PSS)",
    "rounds (coverage)",
)

Rounds = Mapping[int, float]


def make_table(results: Results, job: str) -> Iterator[str]:
    """Yield a table in Markdown, the fastest first; at the end the contestants without figures, with the reason."""
    found = results.collect(job)
    yield from make_rows(_HEADER, (), left=1)
    timed = [name for name in found if found[name]["items_per_s"]]
    for name in sorted(timed, key=lambda name: -median(found[name]["items_per_s"].values())):
        figures = found[name]
        rate, cpu = figures["items_per_s"], figures["cpu_s_per_item"]
        times = "" if name == OURS or OURS not in timed else divide(rate, found[OURS]["items_per_s"]).text()
        cells = (
            f"**{name}**" if name == OURS else name,
            f"{median(rate.values()):,.0f}" if median(rate.values()) >= 100 else f"{median(rate.values()):.1f}",
            times,
            format_seconds(median(cpu.values())),
            format_seconds(median(figures["first_s"].values())),
            format_waits(pool_waits(figures["waits"].values())),
            f"{max(figures['pss_bytes'].values()) / 1e6:,.0f} MB" if figures["pss_bytes"] else "",
            f"{len(rate)} ({estimate(list(rate.values())).coverage:.0%})",
        )
        yield format_row(cells)
    for name in CONTESTANTS:
        if name not in timed and (reason := results.find_exclusion(job, name)):
            yield f"| {name} | *{reason}* |" + " |" * (len(_HEADER) - 2)


def list_losses(results: Results, job: str) -> Iterator[str]:
    """Yield a line for each contestant of the table that lost rounds, and the meaning of the brackets."""
    found = results.collect(job)
    for name in CONTESTANTS:
        failures = results.list_failures(job, name)
        if not failures or not found[name]["items_per_s"]:
            continue
        lost = "; ".join(f"round {number}: {reason}" for number, reason in failures)
        excluded = ", and was excluded after two in a row" if results.find_exclusion(job, name) else ""
        yield f"{name} failed in {lost}{excluded}"
    if counts := [len(figures["items_per_s"]) for figures in found.values() if figures["items_per_s"]]:
        coverage = find_coverage(min(counts))
        few = f"; {min(counts)} rounds of rows that are far behind: {coverage:.0%}" if min(counts) < max(counts) else ""
        yield count_rounds(max(counts)) + few


def divide(first: Rounds, second: Rounds) -> Estimate:
    """Return the quotient of the displayed medians of two contestants."""
    return quotient(estimate(list(first.values())), estimate(list(second.values())))


def is_far_behind(results: Results, job: str, contestant: str) -> bool:
    """Return whether it had less than half the fastest's items/s in each of its first rounds, which are then enough."""
    found = results.collect(job)
    own = found[contestant]["items_per_s"]
    if contestant in (OURS, REFERENCE) or len(own) < SHORT_ROUNDS:
        return False
    others = [figures["items_per_s"] for figures in found.values()]
    return all(2 * rate < max(other.get(number, 0.0) for other in others) for number, rate in own.items())


def judge(results: Results, job: str) -> Iterator[str]:
    """Yield the verdicts on stagepipe: items/s compared with the fastest, CPU compared with the cheapest."""
    found = {name: figures for name, figures in results.collect(job).items() if figures["items_per_s"]}
    others = [name for name in found if not name.startswith(OURS)]
    if OURS not in found or not others:
        return
    fastest = max(others, key=lambda name: median(found[name]["items_per_s"].values()))
    rate = divide(found[OURS]["items_per_s"], found[fastest]["items_per_s"])
    verdict = VERDICTS[compare(rate, at_least=_CLOSE)]
    paired = _divide_rounds(found[OURS]["items_per_s"], found[fastest]["items_per_s"])
    yield (
        f"{job}: {rate.text()} of the items/s of {fastest}: {verdict} (target: at least {_CLOSE}); in the same round "
        f"{paired.text()}"
    )
    cheapest = min(others, key=lambda name: median(found[name]["cpu_s_per_item"].values()))
    cpu = divide(found[cheapest]["cpu_s_per_item"], found[OURS]["cpu_s_per_item"])
    verdict = VERDICTS[compare(cpu, at_least=1 / _MAX_CPU)]
    yield f"{job}: {cpu.invert().text()} of the CPU of {cheapest}: {verdict} (target: at most {_MAX_CPU})"


def _divide_rounds(numerators: Mapping[int, float], denominators: Mapping[int, float]) -> Estimate:
    """Divide round by round, because a temporary load of the machine slows both."""
    rounds = [number for number in numerators if number in denominators]
    return ratio([numerators[number] for number in rounds], [denominators[number] for number in rounds])


def count_rounds(rounds: int) -> str:
    """Describe the number of rounds and the coverage of their intervals."""
    coverage = find_coverage(rounds)
    return f"medians of {rounds} rounds; their intervals contain the true median with a probability of {coverage:.0%}"


def make_page(results_path: Path, page: str) -> str:
    """Return the page with the tables of the results between its markers."""
    results = Results(results_path)
    return fill(page, "TABLES", "\n" + "\n".join(_make_lines(results)))


def _make_lines(results: Results) -> Iterator[str]:
    for job in results.jobs:
        about = results.describe(job)
        yield f"\n### {job.capitalize()}\n"
        yield from make_table(results, job)
        yield ""
        yield from (f"- {line}" for line in (*judge(results, job), *list_losses(results, job)))
        yield f"- commit {about['commit']}, `{about['command']}`; {machine_line(about['machine'])} at the start"


if __name__ == "__main__":
    main(sys.argv[1:])
