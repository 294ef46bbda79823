"""Engines side by side on this machine: `python -m benchmarks.engines`.

    python -m benchmarks.engines [--sizes 100000 1200000] [--work-ms 0 1] [--rounds 6] [--json FILE]
    python -m benchmarks.engines --page   # fill the table of docs/scaling.md from benchmarks/results/engines.json

local                       the local engine
islands                     `inside: local` on one node: the local engine in an actor of Ray
Ray Data                    written by hand, as its documentation advises: rows are columns of arrays, in order Ray
Data, any item, seeded  written by hand, with the additions of `engine: ray`: pickled items of any type, the bytes of
                            their arrays next to the pickles, and seeds by item
engine: ray                 the config of the first

Each engine moves arrays through two stages, one worker each, in every round; a ratio is taken within a round. Start-up
is left out. The order of the contestants changes between rounds. Before the first round, each Ray Data contestant takes
a turn with six cuts (the rows of a batch and of a read task, and the size of blocks) and keeps the fastest. Ray runs on
this machine, with its CPUs. The CPU time covers all processes below the measuring one; for islands, it covers the
island, without Ray's own processes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.command import finish, hardware_line, open_run
from benchmarks.common.figures import estimate, find_coverage, judge, ratio
from benchmarks.common.page import fill, make_table
from benchmarks.common.turn import FIGURES, ROOT, order
from benchmarks.engines import (
    CONTESTANTS,
    ENGINE_RAY,
    ISLANDS,
    LOCAL,
    LONGER,
    RAY_DATA,
    RAY_DATA_ITEMS,
    Job,
    choose_cut,
)
from stagepipe.engine.ray import RayCluster

PAGE = ROOT / "docs" / "scaling.md"
TITLES = ("item, work of a stage", "engine", "items/s", "CPU ms an item", "times Ray Data")
RESULTS = FIGURES / "engines.json"
_SIZES_BYTES = (100_000, 1_200_000, 38_500_000)
_WORKS_MS = (0.0, 1.0)
_BYTES_PER_ROUND = 4_000_000_000
"""Several times the bytes that wait between the stages at the first item, which would arrive as a burst."""
_WORK_S_PER_ROUND = 2.0
_ITEM_LIMITS = (60, 8000)
_WIDTHS = (40, 26, 24, 24)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES_BYTES, help="bytes of an item")
    parser.add_argument("--work-ms", type=float, nargs="+", default=_WORKS_MS, help="CPU time of a stage for an item")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path, help="file for the figures of every round")
    parser.add_argument("--page", action="store_true", help=f"measure nothing; fill {PAGE.name} from {RESULTS.name}")
    arguments = parser.parse_args()
    if arguments.page:
        made = "\n".join(make_lines(json.loads(RESULTS.read_text())))
        PAGE.write_text(fill(PAGE.read_text(), "engines", made))
        return
    document = open_run("engines", packages=["ray"])
    sections: list[dict[str, Any]] = []
    with closing(RayCluster("local")):  # clients that join it later leave it running
        for work_ms in arguments.work_ms:
            for nbytes in arguments.sizes:
                job = Job(_count_items(nbytes, work_ms), nbytes, work_ms)
                cuts = {name: choose_cut(job, name) for name in (RAY_DATA, RAY_DATA_ITEMS)}
                print(f"rows of a batch and a read task, MiB of a block: {cuts}", file=sys.stderr, flush=True)
                rounds = measure(job, cuts, arguments.rounds)
                place = {"count": job.count, "nbytes": nbytes, "work_ms": work_ms}
                sections.append({**place, "cuts": cuts, "rounds": rounds})
                _print_section(sections[-1])
    print(*(line for section in sections for line in list_targets(section)), sep="\n")
    finish(arguments.json, {**document, "sections": sections})


def _count_items(nbytes: int, work_ms: float) -> int:
    low, high = _ITEM_LIMITS
    high = min(high, int(_WORK_S_PER_ROUND * 1e3 / work_ms)) if work_ms else high
    return min(max(_BYTES_PER_ROUND // nbytes, low), high) // 10 * 10


def measure(job: Job, cuts: Mapping[str, tuple[int, int, int]], rounds: int) -> dict[str, list[list[float]]]:
    """Return [items/s, CPU s per item] of each round, by contestant. `cuts`: for the contestants that have one."""
    found: dict[str, list[list[float]]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        for name in order(list(CONTESTANTS), number):
            print(f"{job.nbytes:,} bytes, {job.work_ms:g} ms, round {number + 1}: {name}", file=sys.stderr, flush=True)
            own = replace(job, count=job.count * LONGER.get(name, 1), cut=cuts.get(name, job.cut))
            speed = CONTESTANTS[name](own)
            found[name].append([speed.items_per_s, speed.cpu_s_per_item])
    return found


def _print_section(section: dict[str, Any]) -> None:
    size, work = f"{section['nbytes']:,} bytes", f"{section['work_ms']:g} ms of work a stage"
    print(f"\n{size}, {work}, {section['count']} items; local and islands {LONGER[LOCAL]} times as many")
    for cells in (TITLES, *make_rows(section)):
        print("".join(f"{cell:{width}}" for cell, width in zip(cells[1:], _WIDTHS, strict=True)).rstrip(), flush=True)


def make_lines(documents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the table, the verdicts, and the machine."""
    sections = [section for document in documents for section in document["sections"]]
    yield ""
    yield from make_table(TITLES, (row for section in sections for row in make_rows(section)), left=2)
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
    """Yield the row of each contestant: the place (only in the first row), its name and its figures."""
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
        name = f"{place}: engine: ray takes at most 1.1 times as long per item as the same by hand"
        targets.append(judge(name, found, "{} times", at_most=1.1))
        found = ratio(rates[RAY_DATA], rates[ENGINE_RAY])
        notes.append(
            f"{place}: engine: ray takes {found.text()} times as long per item as Ray Data with columns of arrays"
        )
    added = [1e6 / own - 1e6 / other for own, other in zip(rates[ENGINE_RAY], rates[RAY_DATA_ITEMS], strict=True)]
    notes.append(f"{place}: engine: ray minus the same by hand: {estimate(added).text(0)} us per item")
    return [*(target.line() for target in targets), *(f"      {note}" for note in notes)]


if __name__ == "__main__":
    main()
