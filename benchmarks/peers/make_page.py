"""Write the tables of docs/peers.md from the results of `python -m benchmarks.peers`.

python -m benchmarks.peers.make_page [RESULTS.json] [PAGE.md]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.machine import machine_line
from benchmarks.common.turn import ROOT
from benchmarks.peers.results import Results
from benchmarks.peers.tables import judge, list_losses, make_table

BEGIN, END = "<!-- TABLES -->", "<!-- /TABLES -->"
RESULTS, PAGE = ROOT / "docs" / "benchmarks" / "peers.json", ROOT / "docs" / "peers.md"


def make_page(results_path: Path, page: str) -> str:
    """Return the page with the tables of the results between its markers."""
    results = Results(results_path)
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = "\n".join(_make_lines(results))
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def _make_lines(results: Results) -> Iterator[str]:
    for job in results.jobs:
        about = results.describe(job)
        yield f"\n### {job.capitalize()}\n"
        yield from make_table(results, job)
        yield ""
        yield from (f"- {line}" for line in (*judge(results, job), *list_losses(results, job)))
        yield f"- commit {about['commit']}, `{about['command']}`; {machine_line(about['machine'])} at the start"


def main(arguments: Sequence[str]) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("page", type=Path, nargs="?", default=PAGE)
    options = parser.parse_args(arguments)
    options.page.write_text(make_page(options.results, options.page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
