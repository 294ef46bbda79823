"""Fill the table of docs/scaling.md from docs/benchmarks/engines.json: a list of what `benchmarks.engines` has written.

python -m benchmarks.engines.make_page
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.common.command import hardware_line
from benchmarks.common.figures import estimate, find_coverage, ratio
from benchmarks.common.page import fill, make_table
from benchmarks.common.turn import ROOT
from benchmarks.engines.__main__ import list_targets
from benchmarks.engines.contestants import RAY_DATA

PAGE = ROOT / "docs/scaling.md"
_RULE = ("---", "---", "---:", "---:", "---:")
_TITLES = ("item, work of a stage", "engine", "items/s", "CPU ms an item", "times Ray Data")


RESULTS = ROOT / "docs/benchmarks/engines.json"


def main() -> None:
    """Put the tables of all runs into one."""
    made = "\n".join(make_lines(json.loads(RESULTS.read_text())))
    PAGE.write_text(fill(PAGE.read_text(), "engines", made))


def make_lines(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table, the verdicts, and where it was measured."""
    sections = [section for document in documents for section in document["sections"]]
    yield ""
    yield from make_table(_TITLES, (row for section in sections for row in _make_rows(section)), _RULE)
    yield ""
    yield from (f"- {' '.join(line.split())}" for section in sections for line in list_targets(section))
    yield ""
    for document in documents:
        rounds = len(document["sections"][0]["rounds"][RAY_DATA])
        machine = document["machine"]
        yield f"`{document['command']}`: medians of {rounds} rounds, brackets: {100 * find_coverage(rounds):.0f} %"
        yield f"interval; ratios of one round. {hardware_line(machine)}, commit {machine['commit']}, load average"
        yield f"{machine['load_average']:.1f} at the start."


def _make_rows(section: dict[str, Any]) -> Iterator[list[str]]:
    base = [values[0] for values in section["rounds"][RAY_DATA]]
    place = f"{section['nbytes'] / 1e6:g} MB, {section['work_ms']:g} ms"
    for name, values in section["rounds"].items():
        rates, cpus_ms = [value[0] for value in values], [value[1] * 1e3 for value in values]
        yield [place, name, estimate(rates).text(0), estimate(cpus_ms).text(), ratio(rates, base).text()]
        place = ""


if __name__ == "__main__":
    main()
