"""Durations, ratios and tables as text. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.common.figures import Estimate
from benchmarks.published.results import Figure, Row

EMPTY = ""
_WIDTH = 120
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def duration(ns: float) -> str:
    """Format with three digits and a unit.

    >>> [duration(ns) for ns in (1234567890, 45600000, 789, 0)]
    ['1.23 s', '45.6 ms', '0.789 us', '0 us']
    """
    factor, unit = next((entry for entry in _UNITS if ns >= entry[0]), _UNITS[-1])
    return f"{three_digits(ns / factor)} {unit}"


def three_digits(value: float) -> str:
    """Format with three digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def spread(figure: Figure) -> str:
    """Format the median and its interval, or the reason why there is none.

    `45.6 ms [44.1 ms, 48.0 ms]`
    """
    if figure.ns is None:
        return f"*{figure.reason or 'not measured'}*"
    return f"{duration(figure.ns.value)} [{duration(figure.ns.low)}, {duration(figure.ns.high)}]"


def rounds(figures: Iterable[Figure]) -> str:
    """Format how many rounds the medians of a row come from, and the coverage of their intervals: `6 (97 %)`.

    If the payloads differ, the fewest rounds count.
    """
    measured = [(figure.rounds, figure.ns.coverage) for figure in figures if figure.ns]
    if not measured:
        return EMPTY
    count, coverage = min(measured)
    return f"{count} ({coverage:.0%})".replace("%", " %")


def times(estimate: Estimate) -> str:
    """Format a ratio with its interval: `12 [11, 15]`."""
    return f"{three_digits(estimate.value)} [{three_digits(estimate.low)}, {three_digits(estimate.high)}]"


def times_stagepipe(row: Row, stagepipe: Row | None, payload: str) -> str:
    """Format the figure relative to stagepipe's. Return "" for stagepipe's own row, or if there is no ratio."""
    estimate = None if stagepipe is None or stagepipe is row else row.slower_than(stagepipe, payload)
    return EMPTY if estimate is None else times(estimate)


def megabytes(nbytes: float) -> str:
    """Format in millions of bytes."""
    return f"{nbytes / 1e6:,.0f} MB" if nbytes else EMPTY


def seconds(value: float | None) -> str:
    """Format a published figure."""
    return EMPTY if value is None else duration(value * 1e9)


def name(row: Row) -> str:
    """Format the name of a contestant: stagepipe in bold, an addition to the write-up with a +."""
    text = row.contestant.name
    if row.contestant.is_stagepipe:
        return f"**{text}**"
    return f"{text} +" if row.contestant.is_addition else text


def by_time(rows: Sequence[Row], payload: str) -> list[Row]:
    """Sort the rows, the fastest first and those without a figure last."""
    return sorted(rows, key=lambda row: figure.value if (figure := row.figures[payload].ns) else float("inf"))


def table(header: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    """Format a table in Markdown, after an empty line."""
    yield ""
    yield _line(header)
    yield _line(["---"] + ["---:"] * (len(header) - 1))
    for cells in body:
        yield _line(cells)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def paragraph(text: str, hanging: str = "") -> str:
    """Wrap to the line length of the documentation."""
    return textwrap.fill(
        " ".join(text.split()), _WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
