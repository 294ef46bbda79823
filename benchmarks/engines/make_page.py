"""Fill the table of docs/scaling.md from docs/benchmarks/engines.json: a list of what `benchmarks.engines` has written.

python -m benchmarks.engines.make_page
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.common.command import hardware_line
from benchmarks.common.figures import estimate, find_coverage, judge, ratio
from benchmarks.common.page import fill, make_table
from benchmarks.common.turn import ROOT
from benchmarks.engines.contestants import ENGINE_RAY, ISLANDS, LOCAL, RAY_DATA, RAY_DATA_ITEMS

PAGE = ROOT / "docs/scaling.md"
_RULE = ("---", "---", "---:", "---:", "---:")
TITLES = ("item, work of a stage", "engine", "items/s", "CPU ms an item", "times Ray Data")


RESULTS = ROOT / "docs/benchmarks/engines.json"


def main() -> None:
    """Put the tables of all runs into one."""
    made = "\n".join(make_lines(json.loads(RESULTS.read_text())))
    PAGE.write_text(fill(PAGE.read_text(), "engines", made))


def make_lines(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table, the verdicts, and where it was measured."""
    sections = [section for document in documents for section in document["sections"]]
    yield ""
    yield from make_table(TITLES, (row for section in sections for row in make_rows(section)), _RULE)
    yield ""
    yield from (f"- {' '.join(line.split())}" for section in sections for line in list_targets(section))
    yield ""
    for document in documents:
        rounds = len(document["sections"][0]["rounds"][RAY_DATA])
        machine = document["machine"]
        yield f"`{document['command']}`: medians of {rounds} rounds, brackets: {100 * find_coverage(rounds):.0f} %"
        yield f"interval; ratios of one round. {hardware_line(machine)}, commit {machine['commit']}, load average"
        yield f"{machine['load_average']:.1f} at the start."


def make_rows(section: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the row of each contestant: the place, in the first row alone, its name and its figures."""
    base = [values[0] for values in section["rounds"][RAY_DATA]]
    place = f"{section['nbytes'] / 1e6:g} MB, {section['work_ms']:g} ms"
    for name, values in section["rounds"].items():
        rates, cpus_ms = [value[0] for value in values], [value[1] * 1e3 for value in values]
        cut = section.get("cuts", {}).get(name)
        label = name if cut is None else f"{name} ({cut[0]} rows a batch, {cut[1]} a read task, blocks of {cut[2]} MiB)"
        yield [place, label, estimate(rates).text(0), estimate(cpus_ms).text(), ratio(rates, base).text()]
        place = ""


def list_targets(section: dict[str, Any]) -> list[str]:
    """Return the verdict on each target that a section decides."""
    rates = {name: [value[0] for value in values] for name, values in section["rounds"].items()}
    place = f"{section['nbytes']:,} bytes, {section['work_ms']:g} ms"
    targets, notes = [], []
    if section["nbytes"] == 1_200_000 and not section["work_ms"]:
        found = ratio(rates[ISLANDS], rates[RAY_DATA])
        targets.append(judge(f"{place}: islands at least 5 times Ray Data", found, "{} times", at_least=5))
        found = ratio(rates[ISLANDS], rates[LOCAL])
        targets.append(judge(f"{place}: islands at least 0.8 of local", found, "{}", at_least=0.8))
    if section["work_ms"] >= 1:
        found = ratio(rates[RAY_DATA_ITEMS], rates[ENGINE_RAY])
        name = f"{place}: an item takes engine: ray at most 1.1 times what the same by hand takes"
        targets.append(judge(name, found, "{} times", at_most=1.1))
        found = ratio(rates[RAY_DATA], rates[ENGINE_RAY])
        notes.append(
            f"{place}: an item takes engine: ray {found.text()} times what Ray Data takes with columns of arrays"
        )
    added = [1e6 / own - 1e6 / other for own, other in zip(rates[ENGINE_RAY], rates[RAY_DATA_ITEMS], strict=True)]
    notes.append(f"{place}: engine: ray adds {estimate(added).text(0)} us an item to the same by hand")
    return [*(target.line() for target in targets), *(f"      {note}" for note in notes)]


if __name__ == "__main__":
    main()
