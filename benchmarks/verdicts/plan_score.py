"""Score whether `plan` names the planted bottleneck before the run, and its rate. See `benchmarks.verdicts`.

    python -m benchmarks.verdicts.plan_score [--case NAME]... [--rounds 3] [--json FILE]

`plan` applies only to faults that a probe can see: it sends one item at a time through one worker of each stage, so it
cannot see windows, order, a worker that is slower than the others, deaths, a training step, or a change after its few
items. The planned and the measured rate of a round follow each other.

named  rounds in which `limited_by` is the planted fault; a hop, which `plan` has no limit for, is named by its advice
fix    rounds in which the first advice is the fix; only for cases with a fix
ratio  predicted rate divided by the measured steady rate: median, lowest and highest
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from benchmarks.common.command import finish, make_parser, open_run, write_json
from benchmarks.common.turn import adopt_orphans, answer_turn, run_turn
from benchmarks.verdicts import CASES, Case, Surroundings
from benchmarks.verdicts.__main__ import _serve_slowly
from stagepipe import Pipeline

_LIMIT_S = 120.0
_SEEN_BY_A_PROBE: Final = (
    "sleeping stage",
    "computing stage",
    "waiting for a server",
    "slow source",
    "slow sink",
    "slow sink with workers",
    "slow collate",
    "forced pipe",
    "oversubscribed threads",
    "time lost to retries",
    "two equal stages",
)

Round = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Score the cases, print a line for each, and return the exit status."""
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--case", action="append", choices=_SEEN_BY_A_PROBE, metavar="NAME", help="may be repeated")
    options = parser.parse_args(arguments)
    adopt_orphans()
    about = open_run("verdicts.plan_score")
    print(f"\n{'case':24} named   fix     ratio               limited by", flush=True)
    document: dict[str, Any] = {"machine": about["machine"], "cases": {}}
    with tempfile.TemporaryDirectory(prefix="plan-score-") as folder, _serve_slowly() as port:
        for case in (case for case in CASES if case.name in (options.case or _SEEN_BY_A_PROBE)):
            rounds = [_score(case, Path(folder), port) for _ in range(options.rounds)]
            document["cases"][case.name] = rounds
            print(_format_case(case, rounds), flush=True)
            write_json(options.json, document)
    rounds = [each for case_rounds in document["cases"].values() for each in case_rounds]
    ratios = [each["ratio"] for each in rounds]
    named = sum(each["named"] for each in rounds)
    close = sum(1 / 1.25 <= ratio <= 1.25 for ratio in ratios)
    print(f"\nnamed in {named} of {len(rounds)} rounds; rate within 25 % in {close}; median ratio {median(ratios):.2f}")
    finish(options.json, document)
    return int(named < len(rounds))


def names_limit(case: Case, forecast: Mapping[str, Any]) -> bool:
    """Whether a forecast names the limit of a case.

    >>> names_limit(CASES[0], {"limited_by": "work", "advice": []})
    True
    """
    return forecast["limited_by"] in case.limited_by or (case.kind == "hop" and advises_fix(case, forecast))


def advises_fix(case: Case, forecast: Mapping[str, Any]) -> bool:
    """Whether the first advice of a forecast is the fix of a case."""
    overrides = forecast["advice"][0]["overrides"] if forecast["advice"] else ()
    return bool(case.fix) and re.fullmatch(case.fix, " ".join(overrides)) is not None


def make_forecast(config: Mapping[str, Any]) -> dict[str, Any]:
    """Plan a pipeline: the output of `stagepipe plan --run-sink --json`."""
    forecast: dict[str, Any] = msgspec.to_builtins(Pipeline(config).forecast(run_sink=True))
    return forecast


def _score(case: Case, folder: Path, port: int) -> Round:
    """Plan a case, then run it."""
    own = Path(tempfile.mkdtemp(dir=folder))
    config = case.make_config(Surroundings(folder=str(own), port=port))
    began_s = time.monotonic()
    forecast = run_turn("benchmarks.verdicts.plan_score", {"config": config}, _LIMIT_S)
    plan_s = time.monotonic() - began_s
    job = {"config": config, "overrides": [], "consumer_ms": case.consumer_ms, "cpu_group": ""}
    steady = run_turn("benchmarks.verdicts.turn", job, _LIMIT_S)["steady"]
    predicted = forecast["items_per_s"]
    return {
        "named": names_limit(case, forecast),
        "fix": advises_fix(case, forecast),
        "predicted": predicted,
        "measured": steady,
        "ratio": predicted / steady,
        "plan_s": plan_s,
        "items_probed": forecast["items_probed"],
        "limited_by": forecast["limited_by"],
        "bottleneck": forecast["bottleneck"],
        "advice": [advice["overrides"] for advice in forecast["advice"]],
        "notes": forecast["notes"],
    }


def _format_case(case: Case, rounds: Sequence[Round]) -> str:
    named, fixes = (f"{sum(each[key] for each in rounds)} of {len(rounds)}" for key in ("named", "fix"))
    ratios = [each["ratio"] for each in rounds]
    ratio = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    limits = ", ".join(dict.fromkeys(each["limited_by"] or "-" for each in rounds))
    line = f"{case.name:24} {named:7} {fixes if case.fix else '-':7} {ratio:19} {limits}"
    wrong = next((each for each in rounds if not each["named"]), None)
    return line if wrong is None else f"{line}\n{'':26}said: {wrong['bottleneck']}"


if __name__ == "__main__":
    if not answer_turn(sys.argv[1:], make_forecast):
        sys.exit(main(sys.argv[1:]))
