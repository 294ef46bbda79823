"""The printed tables: one for each size, stagepipe's own figures of its hops, and the loops over small items. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.common.figures import estimate, ratio
from benchmarks.hop.loop import ITEMS, LoopFigures
from benchmarks.hop.pipelines import HEADER_ONLY
from benchmarks.hop.schedule import BASE, Row

LOOP_BASE = {"stagepipe": "Pipe", "stagepipe + stage": "Pipe + stage"}


def size_table(rows: list[Row]) -> Iterator[str]:
    """Format the rows of one size, untouched and touched side by side."""
    untouched = {row.contestant: row for row in rows if not row.touched}
    touched = {row.contestant: row for row in rows if row.touched}
    first = rows[0]
    yield f"\n{first.size}: dict of id, label and {first.nbytes:,} bytes of image; {describe_rounds(len(first.us))}"
    yield f"{'':24}| {'untouched':^46}| {'touched by the receiver':^46}"
    header = f"{'us':>9} {'CPU us':>9}  {'times ' + BASE:<26}"
    yield f"{'':24}|{header}|{header}"
    for name in untouched:
        cells = [_cells(rows_by_name[name], rows_by_name.get(BASE)) for rows_by_name in (untouched, touched)]
        yield f"{name:24}|{cells[0]}|{cells[1]}".rstrip()
    if HEADER_ONLY in untouched:
        yield "  header only: nothing is written or read; it is the cost of a hop without its contents"


def _cells(row: Row, base: Row | None) -> str:
    against = ratio(row.us, base.us).text() if base is not None and base is not row else "1" if base is row else ""
    return f"{median(row.us):9.1f} {median(row.cpu_us):9.1f}  {against:<26}"


def hop_table(reports: dict[str, Any]) -> Iterator[str]:
    """Format what stagepipe reports about its hops: the median of each phase in us, including the warm-up."""
    for name, summary in reports.items():
        for hop in summary["hops"]:
            phases = ", ".join(
                f"{phase.removesuffix('_ns')} {p['p50'] / 1000:.1f}" for phase, p in hop["phases_ns"].items()
            )
            yield f"  {name}: {hop['from']} -> {hop['to']}: cost {hop['cost_ns']['p50'] / 1000:.1f} us ({phases})"


def loop_table(loops: LoopFigures) -> Iterator[str]:
    """Format the loops over small items: a program's first items and the same number again, with ratios to Pipe."""
    for kind, turns in loops.items():
        rounds = describe_rounds(len(next(iter(turns.values()))))
        yield f"\nA loop over dicts of {kind}, alone: the first {ITEMS:,} items and the next; {rounds}"
        titles = ("us", "CPU us", "us later", "CPU us later")
        yield f"{'':20}" + "".join(f"{title:>10}  {'times Pipe':20}" for title in titles).rstrip()
        for name, figures in turns.items():
            base = turns.get(LOOP_BASE.get(name, ""))
            cells = (_loop_cell(figures, base, key) for key in ("us", "cpu_us", "later_us", "later_cpu_us"))
            yield f"{name:20}{''.join(cells)}".rstrip()


def _loop_cell(figures: list[dict[str, float]], base: list[dict[str, float]] | None, key: str) -> str:
    values = [turn[key] for turn in figures]
    against = "" if base is None else ratio(values, [turn[key] for turn in base]).text()
    return f"{median(values):10.1f}  {against:20}"


def describe_rounds(rounds: int) -> str:
    """Name the number of rounds and the probability of the intervals."""
    return f"medians of {rounds} rounds, {100 * estimate([1.0] * rounds).coverage:.0f} % intervals"


DESCRIPTION = (
    "Ratios are taken pair by pair within a round; brackets hold the sign-test interval of their median, which "
    "contains the true median with the probability that stands above the table."
)
