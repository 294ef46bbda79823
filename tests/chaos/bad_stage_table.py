"""The bad stages as a Markdown table: all of them, or those that are named.

python tests/chaos/bad_stage_table.py [raises ...]
python -m tests.chaos.bad_stage_table [raises ...]
"""

# ruff: noqa: T201 - what it prints is what it is for
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # for the first form

from tests.support.bad_stage_table import BAD_STAGE_CASES, run_case


def main(names: list[str]) -> None:
    """Run each bad stage on this machine and print its row."""
    print("| stage | what happened | what the user saw | seconds | left behind |\n|---|---|---|---|---|")
    for case in BAD_STAGE_CASES:
        if names and case.uses not in names:
            continue
        with pytest.MonkeyPatch.context() as patch:
            outcome = run_case(case, patch)
        summary = outcome.summary.replace("|", "\\|")
        leftovers = outcome.leftovers or "nothing"
        print(f"| `{case.uses}` | {case.behaviour} | {summary} | {outcome.seconds:.1f} | {leftovers} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
