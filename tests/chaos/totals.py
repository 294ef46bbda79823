"""The totals over all cases of a chaos run, and what they say."""

from __future__ import annotations

import time
from collections import Counter

from tests.chaos.cases import Case
from tests.chaos.running import Outcome

BAD_VERDICTS = ("different", "refused", "hang", "failed", "crashed", "stalled", "late", "left", "died")
_COUNT_NAMES = (
    *("items", "lost", "doubled", "strange", "restarts", "killed", "timeouts", "at crash points", "stalls"),
    *("kills", "stops", "errors", "changes", "failed changes", "kills at start", "kills of the retiring"),
)
"""`restarts` are the deaths that the runs recovered from: of workers that were `killed`, `at crash points`, and
`timeouts` of stages that hang."""


class Totals:
    """Counts outcomes."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._orders: Counter[str] = Counter()
        self._payloads: Counter[str] = Counter()
        self._started_s = time.monotonic()

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def add(self, case: Case, outcome: Outcome) -> None:
        """Add the outcome of a case."""
        self._counts[outcome["verdict"]] += 1
        if outcome["verdict"] in {"no case", "refused"}:
            return
        self._counts["pipelines"] += 1
        self._counts["histories"] += bool(case.get("changes"))
        self._orders[case["config"]["order"]] += 1
        self._payloads[_get_kind(case["config"]["stages"][0])] += 1
        for name in _COUNT_NAMES:
            self._counts[name] += outcome.get(name, 0)

    def __str__(self) -> str:
        names = ("pipelines", *_COUNT_NAMES, *BAD_VERDICTS, "no case")
        seconds = time.monotonic() - self._started_s
        return f"{seconds:5.0f} s: " + ", ".join(f"{self._counts[name]} {name}" for name in names)

    def describe(self) -> str:
        """The totals in lines, for people."""
        counts = self._counts
        lines = {
            "pipelines by order": _format_counts(self._orders),
            "pipelines by payload": _format_counts(self._payloads),
            "workers that died": f"{counts['killed']} killed at random moments, {counts['at crash points']} at crash "
            f"points, {counts['timeouts']} by a timeout; {counts['restarts']} restarts",
            "workers that came or went": f"{counts['changes']}; {counts['failed changes']} could not be added, "
            f"{counts['kills at start']} were killed at their start and {counts['kills of the retiring']} as they "
            "retired",
            "restarts after a stall": f"{counts['stalls']}",
            "items": f"{counts['items']}, of them {counts['lost']} lost, {counts['doubled']} doubled, "
            f"{counts['strange']} strange",
            "runs": f"{counts['hang']} hung, {counts['left']} left something behind",
        }
        return "\n".join([str(self), *(f"  {name:24}{text}" for name, text in lines.items())])


def describe_case(case: Case, outcome: Outcome) -> str:
    """A case and its outcome in a line."""
    config = case["config"]
    names = [_get_kind(entry) for entry in config["stages"]]
    deaths = f"{outcome.get('killed', 0)} killed, {outcome.get('at crash points', 0)} at crash points"
    return (
        f"seed {case['seed']}: {outcome['verdict']}: order {config['order']}, {' '.join(names)}: "
        f"{outcome.get('items', 0)} items, {deaths}"
    )


def _get_kind(stage: Case) -> str:
    """The last part of a stage's path. The stage that fetches a dataset's samples has none: `dataset`."""
    return str(stage.get("uses", stage["name"])).rpartition(".")[2]


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
