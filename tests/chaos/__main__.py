"""Chaos tests: runs random pipelines, disturbs them, and compares their output with an inline run.

make chaos MINUTES=20
python -m tests.chaos --minutes 20 [--seed 1]    cases from consecutive seeds; the first that fails is shrunk
python -m tests.chaos --seed 17 --once           the case of one seed
python -m tests.chaos --case '{...}' [--times 9] the given case
"""

# ruff: noqa: T201 - a command-line tool
from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from tests.chaos.cases import Case, accepts_key, make_case
from tests.chaos.runner import Runner
from tests.chaos.running import Outcome
from tests.chaos.shrinking import shrink

BAD_VERDICTS = ("different", "hang", "failed", "late", "left", "died")
_COUNT_NAMES = ("items", "crashes", "kills", "stops", "errors")
"""Crashes are the deaths that the run recovered from: by kills, and at crash points."""
_SHRINK_TIMEOUT_S = 240.0
_PROGRESS_INTERVAL_S = 20.0


class Totals:
    """The totals over all cases."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._started_s = self._printed_s = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a case."""
        self._counts[outcome["verdict"]] += 1
        if outcome["verdict"] != "no case":
            self._counts["pipelines"] += 1
        for name in _COUNT_NAMES:
            self._counts[name] += outcome.get(name, 0)

    def __str__(self) -> str:
        names = ("pipelines", *_COUNT_NAMES, *BAD_VERDICTS, "no case")
        seconds = time.monotonic() - self._started_s
        return f"{seconds:5.0f} s: " + ", ".join(f"{self._counts[name]} {name}" for name in names)

    def print_progress(self) -> None:
        """Print the totals, at most every 20 seconds."""
        if time.monotonic() - self._printed_s > _PROGRESS_INTERVAL_S:
            self._printed_s = time.monotonic()
            print(self, flush=True)


def main() -> int:
    """Run the command line. The exit status is 1 if a case failed."""
    parser = argparse.ArgumentParser(description="Disturb random pipelines and compare them with an inline run.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--case")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--go-on", action="store_true", help="Do not stop at the first case that fails.")
    options = parser.parse_args()
    with Runner() as runner:
        if options.case or options.once:
            case = json.loads(options.case) if options.case else make_case(options.seed)
            return _run_repeatedly(runner, case, options.times)
        kills = not options.no_kills and accepts_key("max_restarts", 1000, of_stage=False)
        return _run_seeds(runner, options.seed, 60 * options.minutes, kills=kills, go_on=options.go_on)


def _run_repeatedly(runner: Runner, case: Case, times: int) -> int:
    print(json.dumps(case, indent=1))
    failure_count = 0
    for _ in range(times):
        outcome = runner.run(case)
        failure_count += outcome["verdict"] in BAD_VERDICTS
        print(outcome["verdict"], outcome["details"], flush=True)
    return bool(failure_count)


def _run_seeds(runner: Runner, seed: int, timeout_s: float, *, kills: bool, go_on: bool) -> int:
    totals, deadline, failure_count = Totals(), time.monotonic() + timeout_s, 0
    while time.monotonic() < deadline:
        case = make_case(seed, kills=kills)
        outcome = runner.run(case)
        totals.add(outcome)
        totals.print_progress()
        if outcome["verdict"] in BAD_VERDICTS:
            failure_count += 1
            print(f"seed {seed}: {outcome['verdict']}: {outcome['details']}\n{json.dumps(case)}", flush=True)
            if not go_on:
                _print_smallest(runner, case, outcome["verdict"])
                break
        seed += 1
    print(totals)
    return bool(failure_count)


def _print_smallest(runner: Runner, case: Case, verdict: str) -> None:
    details = ""

    def fails(candidate: Case) -> bool:
        nonlocal details
        outcome = runner.run(candidate)
        if outcome["verdict"] == verdict:
            details = outcome["details"]
        return bool(outcome["verdict"] == verdict)

    case = shrink(case, fails, _SHRINK_TIMEOUT_S)
    print(f"smallest case with the same verdict: {details}")
    print(f"python -m tests.chaos --times 20 --case '{json.dumps(case)}'")


if __name__ == "__main__":
    sys.exit(main())
