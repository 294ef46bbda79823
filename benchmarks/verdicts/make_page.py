"""Write the table of docs/verdicts.md from the results of `benchmarks.verdicts` and `benchmarks.verdicts.plan_score`.

python -m benchmarks.verdicts.make_page [VERDICTS.json] [PLAN.json] [PAGE.md]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.common.command import hardware_line
from benchmarks.common.page import fill, make_table
from benchmarks.common.turn import FIGURES, ROOT
from benchmarks.verdicts import CASES, Case
from benchmarks.verdicts.__main__ import list_undisturbed

_MAX_TEXT_CHARS: Final = 60


def make_page(verdicts: Mapping[str, Any], plan: Mapping[str, Any], page: str) -> str:
    """Return the page with the table between its markers."""
    return fill(page, "TABLE", "\n{}\n".format("\n".join(_make_lines(verdicts, plan))))


def _make_lines(verdicts: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    yield from make_table(
        ("case", "right", "changes made", "gain", "advice after them", "`plan` names it", "its rate / measured"),
        (
            (case.name, *_describe_runs(case, verdicts), *_describe_plans(plan["cases"].get(case.name, [])))
            for case in CASES
        ),
    )
    rounds = [each for case in CASES for each in list_undisturbed(verdicts, case.name)]
    total = sum(map(len, verdicts["cases"].values()))
    right = sum(each["right"] for each in rounds)
    steps = sum(not each["stops"] for each in rounds)
    yield ""
    yield (
        f"Right in {right} of {len(rounds)} rounds; {total - len(rounds)} more were disturbed. In {steps} rounds a fix "
        f"was still advised although the last step had gained less than 5 %. {hardware_line(verdicts['machine'])}."
    )


def _describe_runs(case: Case, verdicts: Mapping[str, Any]) -> tuple[str, str, str, str]:
    everything, rounds = verdicts["cases"].get(case.name, []), list_undisturbed(verdicts, case.name)
    disturbed = f", {len(everything) - len(rounds)} disturbed" if len(rounds) < len(everything) else ""
    right = f"{sum(each['right'] for each in rounds)} of {len(rounds)}{disturbed}"
    shown = [each for each in rounds if each["right"]] or rounds
    if not shown:
        return right, "", "", ""
    whole = " (with the start)" if case.rate == "total" else ""
    steps = shown[-1]["steps"]
    changes = ", then ".join(f"`{step['fix']}`" if "=" in step["fix"] else step["fix"] for step in steps[1:])
    last = steps[-1]["verdict"]
    after = f"`{last['fix']}`" if last["fix"] else _shorten(last["advice"])
    return right, changes, f"{median(each['gain'] for each in shown):.2f}{whole}", after


def _describe_plans(rounds: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    if not rounds:
        return "", ""
    ratios = [each["ratio"] for each in rounds]
    named = f"{sum(each['named'] for each in rounds)} of {len(rounds)}"
    return named, f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def _shorten(advice: str) -> str:
    """Return the beginning of an advice in words, without the part that is common to all."""
    text = advice.removeprefix("No config change will help: ").removeprefix("No config change to suggest: ")
    return text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS].rpartition(' ')[0]} ..."


def main(arguments: Sequence[str]) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("verdicts", type=Path, nargs="?", default=FIGURES / "verdicts.json")
    parser.add_argument("plan", type=Path, nargs="?", default=FIGURES / "plan_score.json")
    parser.add_argument("page", type=Path, nargs="?", default=ROOT / "docs" / "verdicts.md")
    options = parser.parse_args(arguments)
    verdicts, plan = (json.loads(path.read_text()) for path in (options.verdicts, options.plan))
    options.page.write_text(make_page(verdicts, plan, options.page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
