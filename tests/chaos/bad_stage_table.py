"""The bad stages as a Markdown table: `python -m tests.chaos.bad_stage_table`."""

# ruff: noqa: T201 - what it prints is what it is for
from __future__ import annotations

import pytest

from tests.support.bad_stage_table import BAD_STAGE_CASES, run_case


def main() -> None:
    """Run each bad stage on this machine and print its row."""
    print("| stage | what happened | what the user saw | seconds | left behind |\n|---|---|---|---|---|")
    for case in BAD_STAGE_CASES:
        with pytest.MonkeyPatch.context() as patch:
            outcome = run_case(case, patch)
        summary = outcome.summary.replace("|", "\\|")
        leftovers = outcome.leftovers or "nothing"
        print(f"| `{case.uses}` | {case.behaviour} | {summary} | {outcome.seconds:.1f} | {leftovers} |", flush=True)


if __name__ == "__main__":
    main()
