"""Chaos: random pipelines, disturbed, against the plain run. `make chaos MINUTES=20`.

python -m tests.chaos --minutes 20 [--seed 1]    cases of one seed after the other; the first that fails is made smaller
python -m tests.chaos --seed 17 --once           the case of one seed
python -m tests.chaos --case '{...}' [--times 9] that case
"""

# ruff: noqa: T201 - what it prints is what it is for
from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from tests.chaos.cases import Case, make, understood
from tests.chaos.runner import Runner
from tests.chaos.running import Outcome
from tests.chaos.shrinking import shrink

BAD = ("different", "hang", "failed", "late", "left", "died")
_NAMES = ("items", "crashes", "kills", "stops", "errors")
"""Crashes are the deaths that were mended: by kills, and at crash points."""
_SHRINK_S = 240.0
_LINE_S = 20.0


class Counts:
    """What was tried, added up."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._began = self._told_at = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        """One case more."""
        self._counts[outcome["verdict"]] += 1
        if outcome["verdict"] != "no case":
            self._counts["pipelines"] += 1
        for name in _NAMES:
            self._counts[name] += outcome.get(name, 0)

    def __str__(self) -> str:
        names = ("pipelines", *_NAMES, *BAD, "no case")
        seconds = time.monotonic() - self._began
        return f"{seconds:5.0f} s: " + ", ".join(f"{self._counts[name]} {name}" for name in names)

    def tell_now_and_then(self) -> None:
        """A line, if the last one is some time ago."""
        if time.monotonic() - self._told_at > _LINE_S:
            self._told_at = time.monotonic()
            print(self, flush=True)


def main() -> int:
    """Exit status 1 when a case failed."""
    parser = argparse.ArgumentParser(description="Random pipelines, disturbed, against the plain run.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--case")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--go-on", action="store_true", help="Do not stop at the first that fails.")
    asked = parser.parse_args()
    with Runner() as runner:
        if asked.case or asked.once:
            case = json.loads(asked.case) if asked.case else make(asked.seed)
            return _repeated(runner, case, asked.times)
        kills = not asked.no_kills and understood("max_restarts", 1000, of_stage=False)
        return _many(runner, asked.seed, 60 * asked.minutes, kills=kills, go_on=asked.go_on)


def _repeated(runner: Runner, case: Case, times: int) -> int:
    print(json.dumps(case, indent=1))
    bad = 0
    for _ in range(times):
        outcome = runner.run(case)
        bad += outcome["verdict"] in BAD
        print(outcome["verdict"], outcome["said"], flush=True)
    return bool(bad)


def _many(runner: Runner, seed: int, most_s: float, *, kills: bool, go_on: bool) -> int:
    counts, deadline, bad = Counts(), time.monotonic() + most_s, 0
    while time.monotonic() < deadline:
        case = make(seed, kills=kills)
        outcome = runner.run(case)
        counts.add(outcome)
        counts.tell_now_and_then()
        if outcome["verdict"] in BAD:
            bad += 1
            print(f"seed {seed}: {outcome['verdict']}: {outcome['said']}\n{json.dumps(case)}", flush=True)
            if not go_on:
                _tell_smallest(runner, case, outcome["verdict"])
                break
        seed += 1
    print(counts)
    return bool(bad)


def _tell_smallest(runner: Runner, case: Case, verdict: str) -> None:
    said: dict[str, str] = {}

    def fails(candidate: Case) -> bool:
        outcome = runner.run(candidate)
        if outcome["verdict"] == verdict:
            said["last"] = outcome["said"]
        return bool(outcome["verdict"] == verdict)

    case = shrink(case, fails, _SHRINK_S)
    print(f"the smallest that does so as well: {said.get('last', '')}")
    print(f"python -m tests.chaos --times 20 --case '{json.dumps(case)}'")


if __name__ == "__main__":
    sys.exit(main())
