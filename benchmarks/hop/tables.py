"""The tables in Markdown, for the terminal and for docs/measured.md, and the targets for the figures. Pure.

A table of the sizes, stagepipe's own figures of its hops, and the loops over small items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.common.figures import Estimate, Target, estimate, is_met, judge, ratio
from benchmarks.common.page import Document, divide, list_missing, list_targets, make_caption, make_table
from benchmarks.hop import loop
from benchmarks.hop.pipelines import HEADER_ONLY
from benchmarks.hop.schedule import BASE, CONTESTANTS

LOOP_BASE = {"stagepipe": "Pipe", "stagepipe + stage": "Pipe + stage"}
LOOP_TARGETS = "a loop over "
"""How the text of each target of the loops begins."""
_PEER, _IMAGE = "Pipe", "1.2MB"
_FIRST = "stagepipe filled"
"""What stands first: an item as a user makes it."""
_SIZE_NAMES = {"0B": "0 B", "1KB": "1 KB", "64KB": "64 KB", "1.2MB": "1.2 MB", "8MB": "8 MB", "64MB": "64 MB"}


def find_us(rows: Sequence[Document], *, touched: bool = False) -> dict[tuple[str, str], list[float]]:
    """Return the microseconds of each round, by contestant and size."""
    return {(row["contestant"], row["size"]): row["us"] for row in rows if row["touched"] == touched}


def make_hop_table(document: Document, *, touched: bool = False) -> Iterator[str]:
    """Yield the table of the sizes: us of an item, touched by the receiver or not, and Pipe's time divided by it."""
    us = find_us(document["rows"], touched=touched)
    names, sizes = (list(dict.fromkeys(key[index] for key in us)) for index in (0, 1))
    names.sort(key=lambda name: name != _FIRST)

    def make_row(name: str) -> list[str]:
        cells = [f"{median(us[name, size]):,.{1 if median(us[name, size]) < 100 else 0}f}" for size in sizes]
        return [name, *cells, divide(us.get((_PEER, _IMAGE)), us.get((name, _IMAGE)), 1)]

    titles = (
        f"us of {'a touched' if touched else 'an'} item",
        *(_SIZE_NAMES[size] for size in sizes),
        f"times faster than Pipe at {_IMAGE}",
    )
    yield from make_table(titles, map(make_row, names))
    rounds = {size: len(us[names[0], size]) for size in sizes}
    usual = max(rounds.values())
    fewer = [f"{_SIZE_NAMES[size]}: {count}" for size, count in rounds.items() if count < usual]
    yield from make_caption(document, usual, f" ({', '.join(fewer)})" if fewer else "")
    yield from list_targets(document, lambda text: not text.startswith(LOOP_TARGETS))
    yield from list_missing(document, CONTESTANTS)


def make_loop_table(document: Document) -> Iterator[str]:
    """Yield the table of the loops over small dicts, with ratios to Pipe."""
    keys = ("us", "cpu_us")
    rounds = 0
    for kind, turns in document["loops"].items():
        columns = {name: {key: [turn[key] for turn in figures] for key in keys} for name, figures in turns.items()}
        rows = []
        for name, own in columns.items():
            base = columns.get(LOOP_BASE.get(name, ""), {})
            cells = [estimate(own[key]).text(1) for key in keys]
            rows.append([name, *cells, *(divide(own[key], base.get(key)) for key in keys)])
            rounds = len(own["us"])
        yield from make_table((f"dict of {kind}", "us", "CPU us", "us, times Pipe", "CPU, times Pipe"), rows)
        yield ""
    yield from list(make_caption(document, rounds))[1:]
    yield from list_targets(document, lambda text: text.startswith(LOOP_TARGETS))
    yield from list_missing(document, loop.CONTESTANTS)


def hop_lines(reports: dict[str, Any]) -> Iterator[str]:
    """Format what stagepipe reports about its hops: the median of each phase in us, including the warm-up."""
    for name, summary in reports.items():
        for hop in summary["hops"]:
            phases = ", ".join(
                f"{phase.removesuffix('_ns')} {p['p50'] / 1000:.1f}" for phase, p in hop["phases_ns"].items()
            )
            yield f"  {name}: {hop['from']} -> {hop['to']}: cost {hop['cost_ns']['p50'] / 1000:.1f} us ({phases})"


_MAX_TIMING_NS = 2000
_MAX_GROWTH = 2.0
"""The allowed growth from the smallest size in shared memory to one a thousand times as large: mostly noise."""


def targets(document: Document) -> Iterator[Target]:
    """Judge all targets. The touched rows are left out, because the receiver's own work is in all of their figures."""
    us = find_us(document["rows"])
    yield _copied(us)
    for name, times in ((BASE, 30), (_FIRST, 30), ("stagepipe passed on", 15), (HEADER_ONLY, 60)):
        text = f"at {_IMAGE}, {name.removeprefix('stagepipe ')}, at least {times} times faster than Pipe"
        found = _divide(us, _PEER, name, _IMAGE)
        yield judge(text, found, f"{found.text(1) if found else ''} times faster", at_least=times)
    yield _flat(us)
    for size in ("0B", "1KB"):
        text = f"at {size}, copied, no slower than Pipe with the same dict"
        yield judge(text, _divide(us, BASE, _PEER, size), "{} times Pipe", at_most=1.0)
    for kind, turns in document["loops"].items():
        for name, base in LOOP_BASE.items():
            text = f"{LOOP_TARGETS}dicts of {kind}, {name}: no slower than {base}"
            own, other = ([turn["us"] for turn in turns.get(each, ())] for each in (name, base))
            yield judge(text, ratio(own, other) if own and other else None, f"{{}} times {base}", at_most=1.0)
    yield _timing(document["reports"])


Us = dict[tuple[str, str], list[float]]


def _divide(us: Us, of: str, to: str, size: str) -> Estimate | None:
    first, second = us.get((of, size)), us.get((to, size))
    return ratio(first, second) if first and second else None


def _copied(us: Us) -> Target:
    text = f"at {_IMAGE}, copied, at most 1.5 x memcpy + the small hop"
    copied, small = us.get((BASE, _IMAGE)), us.get((BASE, "0B"))
    memcpy, to_one = us.get(("memcpy", _IMAGE)), us.get(("memcpy to one", _IMAGE))
    if not (copied and small and memcpy and to_one):
        return Target(text)
    hop = median(small)
    times, times_one = (ratio([us - hop for us in copied], base) for base in (memcpy, to_one))
    measured = f"{times.text()} x memcpy + {hop:.1f} us ({times_one.text()} x memcpy to a single buffer)"
    return Target(text, measured, is_met(times, at_most=1.5))


def _flat(us: Us) -> Target:
    text = f"header only and untouched, the cost grows at most {_MAX_GROWTH:.0f} times with size up to 64 MB"
    us_by_size = {size: us.get((HEADER_ONLY, size)) for size in ("64KB", _IMAGE, "8MB", "64MB")}
    found = {size: values for size, values in us_by_size.items() if values}
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
