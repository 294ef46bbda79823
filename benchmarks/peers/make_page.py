"""The results as tables and verdicts, which this command writes to docs/peers.md.

python -m benchmarks.peers.make_page [RESULTS.json] [PAGE.md]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.common.command import machine_line
from benchmarks.common.figures import (
    VERDICTS,
    Estimate,
    compare,
    estimate,
    find_coverage,
    format_seconds,
    format_waits,
    pool_waits,
    quotient,
    ratio,
)
from benchmarks.common.page import fill, format_row
from benchmarks.common.page import make_table as make_rows
from benchmarks.common.turn import ROOT
from benchmarks.peers.contestants import CONTESTANTS, OURS, REFERENCE
from benchmarks.peers.results import Results

_CLOSE = 0.95
_MAX_CPU = 1.15
SHORT_ROUNDS = 3
"""Rounds of a contestant that is far behind: a turn of it takes as long as any other's."""
_HEADER = (
    "",
    "items/s",
    "times stagepipe",
    "CPU for an item",
    "first item",
    "wait for a batch, all rounds",
    "peak memory (PSS)",
    "rounds (coverage)",
)

Rounds = Mapping[int, float]


def make_table(results: Results, job: str) -> Iterator[str]:
    """Yield a table in Markdown, the fastest first; at the end those without figures, with the reason."""
    found = results.collect(job)
    yield from make_rows(_HEADER, (), ["---"] + ["---:"] * (len(_HEADER) - 1))
    timed = [name for name in found if found[name]["items_per_s"]]
    for name in sorted(timed, key=lambda name: -median(found[name]["items_per_s"].values())):
        figures = found[name]
        rate, cpu = figures["items_per_s"], figures["cpu_s_per_item"]
        times = "" if name == OURS or OURS not in timed else divide(rate, found[OURS]["items_per_s"]).text()
        cells = (
            f"**{name}**" if name == OURS else name,
            f"{median(rate.values()):,.0f}" if median(rate.values()) >= 100 else f"{median(rate.values()):.1f}",
            times,
            format_seconds(median(cpu.values())),
            format_seconds(median(figures["first_s"].values())),
            format_waits(pool_waits(figures["waits"].values())),
            f"{max(figures['pss_bytes'].values()) / 1e6:,.0f} MB" if figures["pss_bytes"] else "",
            f"{len(rate)} ({estimate(list(rate.values())).coverage:.0%})",
        )
        yield format_row(cells)
    for name in CONTESTANTS:
        if name not in timed and (reason := results.find_exclusion(job, name)):
            yield f"| {name} | *{reason}* |" + " |" * (len(_HEADER) - 2)


def list_losses(results: Results, job: str) -> Iterator[str]:
    """Yield a line for each contestant of the table that lost rounds, and what the brackets hold."""
    found = results.collect(job)
    for name in CONTESTANTS:
        failures = results.list_failures(job, name)
        if not failures or not found[name]["items_per_s"]:
            continue
        lost = "; ".join(f"round {number}: {reason}" for number, reason in failures)
        excluded = ", and was excluded after two in a row" if results.find_exclusion(job, name) else ""
        yield f"{name} failed in {lost}{excluded}"
    if counts := [len(figures["items_per_s"]) for figures in found.values() if figures["items_per_s"]]:
        coverage = find_coverage(min(counts))
        few = (
            f"; {min(counts)} rounds of those that are far behind: {coverage:.0%}" if min(counts) < max(counts) else ""
        )
        yield count_rounds(max(counts)) + few


def divide(first: Rounds, second: Rounds) -> Estimate:
    """Return the quotient of the medians of two contestants, as they are shown."""
    return quotient(estimate(list(first.values())), estimate(list(second.values())))


def is_far_behind(results: Results, job: str, contestant: str) -> bool:
    """Return whether it had less than half the fastest's items/s in each of its first rounds, so that they suffice."""
    found = results.collect(job)
    own = found[contestant]["items_per_s"]
    if contestant in (OURS, REFERENCE) or len(own) < SHORT_ROUNDS:
        return False
    others = [figures["items_per_s"] for figures in found.values()]
    return all(2 * rate < max(other.get(number, 0.0) for other in others) for number, rate in own.items())


def judge(results: Results, job: str) -> Iterator[str]:
    """Yield what the figures say of stagepipe: items/s beside the fastest, CPU beside the cheapest."""
    found = {name: figures for name, figures in results.collect(job).items() if figures["items_per_s"]}
    others = [name for name in found if not name.startswith(OURS)]
    if OURS not in found or not others:
        return
    fastest = max(others, key=lambda name: median(found[name]["items_per_s"].values()))
    rate = divide(found[OURS]["items_per_s"], found[fastest]["items_per_s"])
    verdict = VERDICTS[compare(rate, at_least=_CLOSE)]
    paired = _divide_rounds(found[OURS]["items_per_s"], found[fastest]["items_per_s"])
    yield (
        f"{job}: {rate.text()} of the items/s of {fastest}: {verdict} (target: at least {_CLOSE}); in the same round "
        f"{paired.text()}"
    )
    cheapest = min(others, key=lambda name: median(found[name]["cpu_s_per_item"].values()))
    cpu = divide(found[cheapest]["cpu_s_per_item"], found[OURS]["cpu_s_per_item"])
    verdict = VERDICTS[compare(cpu, at_least=1 / _MAX_CPU)]
    yield f"{job}: {cpu.invert().text()} of the CPU of {cheapest}: {verdict} (target: at most {_MAX_CPU})"


def _divide_rounds(numerators: Mapping[int, float], denominators: Mapping[int, float]) -> Estimate:
    """Divide round by round: what slows the machine for a while slows both."""
    rounds = [number for number in numerators if number in denominators]
    return ratio([numerators[number] for number in rounds], [denominators[number] for number in rounds])


def count_rounds(rounds: int) -> str:
    """Describe what the brackets hold."""
    coverage = find_coverage(rounds)
    return (
        f"medians of {rounds} rounds, whose intervals hold the true median with {coverage:.0%}; a ratio divides two "
        "medians, and its brackets go from the lowest to the highest quotient of their intervals"
    )


RESULTS, PAGE = ROOT / "docs" / "benchmarks" / "peers.json", ROOT / "docs" / "peers.md"


def make_page(results_path: Path, page: str) -> str:
    """Return the page with the tables of the results between its markers."""
    results = Results(results_path)
    return fill(page, "TABLES", "\n" + "\n".join(_make_lines(results)))


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
