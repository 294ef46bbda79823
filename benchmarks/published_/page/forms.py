"""Durations, ratios and tables as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from published_.summary import Figure, Row
from side_by_side.figures import Estimate

NOTHING = ""
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def duration(ns: float) -> str:
    """Three digits and a unit.

    >>> [duration(ns) for ns in (1234567890, 45600000, 789, 0)]
    ['1.23 s', '45.6 ms', '0.789 us', '0 us']
    """
    factor, unit = next((each for each in _UNITS if ns >= each[0]), _UNITS[-1])
    return f"{three(ns / factor)} {unit}"


def three(value: float) -> str:
    """Three digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def spread(figure: Figure) -> str:
    """The median and its interval, or the reason why there is none.

    `45.6 ms [44.1 ms, 48.0 ms]`
    """
    if figure.ns is None:
        return f"*{figure.reason or 'not measured'}*"
    return f"{duration(figure.ns.value)} [{duration(figure.ns.low)}, {duration(figure.ns.high)}]"


def times(found: Estimate) -> str:
    """A ratio with its spread: `12 [11, 15]`."""
    return f"{three(found.value)} [{three(found.low)}, {three(found.high)}]"


def beside(row: Row, ours: Row | None, payload: str) -> str:
    """How many times as long as ours it takes; nothing for ours itself, or where there is none."""
    found = None if ours is None or ours is row else row.slower_than(ours, payload)
    return NOTHING if found is None else times(found)


def megabytes(nbytes: float) -> str:
    """In millions of bytes."""
    return f"{nbytes / 1e6:,.0f} MB" if nbytes else NOTHING


def seconds(value: float | None) -> str:
    """A published figure."""
    return NOTHING if value is None else duration(value * 1e9)


def name(row: Row) -> str:
    """Of a contestant; ours stand out, and what no write-up had is marked."""
    text = row.contestant.name
    if row.contestant.is_stagepipe:
        return f"**{text}**"
    return f"{text} +" if row.contestant.beyond else text


def by_time(rows: Sequence[Row], payload: str) -> list[Row]:
    """The quickest first; those without a figure last."""
    return sorted(rows, key=lambda row: figure.value if (figure := row.figures[payload].ns) else float("inf"))


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    """In Markdown, behind an empty line."""
    yield ""
    yield _line(head)
    yield _line(["---"] + ["---:"] * (len(head) - 1))
    for cells in body:
        yield _line(cells)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
