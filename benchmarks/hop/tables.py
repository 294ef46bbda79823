"""The printed tables, and the targets for the figures. Pure.

A table for each size, stagepipe's own figures of its hops, and the loops over small items.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.common.figures import Estimate, Target, estimate, is_met, judge, ratio
from benchmarks.hop.loop import LoopFigures
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


def loop_table(loops: LoopFigures, items: int) -> Iterator[str]:
    """Format the loops over small items: a program's first `items` and as many again, with ratios to Pipe."""
    for kind, turns in loops.items():
        rounds = describe_rounds(len(next(iter(turns.values()))))
        yield f"\nA loop over dicts of {kind}, alone: the first {items:,} items and the next; {rounds}"
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


_IMAGE = "1.2MB"
_MAX_TIMING_NS = 2000
_MAX_GROWTH = 2.0
"""The allowed growth from the smallest size in shared memory to one a thousand times as large: mostly noise."""


class Figures:
    """The untouched rows by contestant and size."""

    def __init__(self, rows: list[Row]) -> None:
        """Leave out the touched rows, because the receiver's own work is in all of their figures."""
        self._us = {(row.contestant, row.size): row.us for row in rows if not row.touched}

    def us(self, name: str, size: str) -> list[float] | None:
        """Return a value for each round, or None if the contestant was not measured."""
        return self._us.get((name, size))

    def times(self, of: str, to: str, size: str) -> Estimate | None:
        """Return the time of `of` divided by that of `to`, or None if one of them was not measured."""
        first, second = self.us(of, size), self.us(to, size)
        return ratio(first, second) if first and second else None


def targets(rows: list[Row], reports: dict[str, dict[str, Any]], loops: LoopFigures) -> Iterator[Target]:
    """Judge all targets."""
    figures = Figures(rows)
    yield _copied(figures)
    for name, times in ((BASE, 30), ("stagepipe filled", 30), ("stagepipe passed on", 15), (HEADER_ONLY, 60)):
        text = f"at {_IMAGE}, {name.removeprefix('stagepipe ')}, at least {times} times faster than Pipe"
        found = figures.times("Pipe", name, _IMAGE)
        yield judge(text, found, f"{found.text(1) if found else ''} times faster", at_least=times)
    yield _flat(figures)
    for size in ("0B", "1KB"):
        text = f"at {size}, copied, no slower than Pipe with the same dict"
        yield judge(text, figures.times(BASE, "Pipe", size), "{} times Pipe", at_most=1.0)
    yield from _loops(loops)
    yield _timing(reports)


def _copied(figures: Figures) -> Target:
    text = f"at {_IMAGE}, copied, at most 1.5 x memcpy + the small hop"
    copied, small = figures.us(BASE, _IMAGE), figures.us(BASE, "0B")
    memcpy, to_one = figures.us("memcpy", _IMAGE), figures.us("memcpy to one", _IMAGE)
    if not (copied and small and memcpy and to_one):
        return Target(text)
    hop = median(small)
    times, times_one = (ratio([us - hop for us in copied], base) for base in (memcpy, to_one))
    measured = f"{times.text()} x memcpy + {hop:.1f} us ({times_one.text()} x memcpy to a single buffer)"
    return Target(text, measured, is_met(times, at_most=1.5))


def _loops(loops: LoopFigures) -> Iterator[Target]:
    for kind, turns in loops.items():
        for name, base in LOOP_BASE.items():
            text = f"a loop over dicts of {kind}, {name}: no slower than {base}"
            own, other = ([turn["us"] for turn in turns.get(each, ())] for each in (name, base))
            yield judge(text, ratio(own, other) if own and other else None, f"{{}} times {base}", at_most=1.0)


def _flat(figures: Figures) -> Target:
    text = f"header only and untouched, the cost grows at most {_MAX_GROWTH:.0f} times with size up to 64 MB"
    us_by_size = {size: figures.us(HEADER_ONLY, size) for size in ("64KB", _IMAGE, "8MB", "64MB")}
    found = {size: us for size, us in us_by_size.items() if us}
    if "64MB" not in found or len(found) < 2:
        return Target(text)
    largest = found.pop("64MB")
    smallest = min(found.values(), key=median)
    growth = estimate([us / base for us, base in zip(largest, smallest, strict=False)])
    return Target(text, f"{growth.text()} times", is_met(growth, at_most=_MAX_GROWTH))


def _timing(reports: dict[str, dict[str, Any]]) -> Target:
    text = f"timing costs at most {_MAX_TIMING_NS / 1000:.0f} us per hop"
    timing_ns = [report["timing_ns_per_hop"] for by_name in reports.values() for report in by_name.values()]
    if not timing_ns:
        return Target(text)
    measured = f"{max(timing_ns) / 1000:.2f} us, according to stagepipe's report"
    return Target(text, measured, max(timing_ns) <= _MAX_TIMING_NS)
