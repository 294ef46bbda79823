"""Durations, ratios and tables as text; the contestants that are faster, and whether the targets are met. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.common.figures import Estimate, compare, format_three_digits, format_times
from benchmarks.common.page import format_row
from benchmarks.published.results import Figure, Row, Summary

EMPTY = ""
_WIDTH = 120
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def duration(ns: float) -> str:
    """Format with three digits and a unit.

    >>> [duration(ns) for ns in (1234567890, 45600000, 789, 0)]
    ['1.23 s', '45.6 ms', '0.789 us', '0 us']
    """
    factor, unit = next((entry for entry in _UNITS if ns >= entry[0]), _UNITS[-1])
    return f"{format_three_digits(ns / factor)} {unit}"


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


def times_stagepipe(row: Row, stagepipe: Row | None, payload: str) -> str:
    """Format the figure relative to stagepipe's. Return "" for stagepipe's own row, or if there is no ratio."""
    estimate = None if stagepipe is None or stagepipe is row else row.slower_than(stagepipe, payload)
    return EMPTY if estimate is None else format_times(estimate)


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
    """Format a table in Markdown, after an empty line. All but the names are aligned to the right."""
    yield ""
    yield format_row(header)
    yield format_row(["---"] + ["---:"] * (len(header) - 1))
    yield from map(format_row, body)


def paragraph(text: str, hanging: str = "") -> str:
    """Wrap to the line length of the documentation."""
    return textwrap.fill(
        " ".join(text.split()), _WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


_TARGET_FROM_BYTES = 64 << 10
_IN_PLACE = ", made in place"
"""How the names of E4's contestants end whose sender draws the numbers into the memory that is sent."""
_ARRAY_CONTESTANTS = ("RawArray through NumPy",)
"""The contestants of E2 that end with an array, not with a list."""
_REFERENCES = {"E1": "stagepipe, responder copies", "E2": "stagepipe, list"}
"""In E1 the row whose responder reads and copies the data, as the responders of the write-up do."""


@dataclass(frozen=True)
class Comparison:
    """The time of a contestant divided by stagepipe's, for a payload."""

    experiment: str
    contestant: str
    payload: str
    nbytes: int
    ratio: Estimate

    @property
    def in_target(self) -> bool:
        """Return whether the target covers this payload: arrays of 64 KiB and more."""
        if self.experiment == "E2" and self.contestant not in _ARRAY_CONTESTANTS:
            return False
        return self.nbytes >= _TARGET_FROM_BYTES

    @property
    def met(self) -> bool | None:
        """Return whether stagepipe is faster; None: the interval straddles 1."""
        return compare(self.ratio, at_least=1)


def reference(experiment: str, rows: Sequence[Row], row: Row | None = None) -> Row | None:
    """Return the row of stagepipe that a row is compared with: the one that does the same work, if it is known."""
    name = _REFERENCES.get(experiment, "stagepipe")
    if row and row.contestant.name in _ARRAY_CONTESTANTS:
        name = "stagepipe, array"
    if row and row.contestant.name.endswith(_IN_PLACE):
        name += _IN_PLACE
    if row and row.contestant.work:
        alike = (own for own in rows if own.contestant.is_stagepipe and own.contestant.work == row.contestant.work)
        name = next((own.contestant.name for own in alike), name)
    return next((own for own in rows if own.contestant.name == name), None)


def comparisons(summary: Summary) -> Iterator[Comparison]:
    """Compare every contestant with stagepipe, for every payload."""
    for experiment, rows in summary.items():
        for row in rows:
            if row.contestant.is_stagepipe or not (stagepipe := reference(experiment, rows, row)):
                continue
            for payload, figure in row.figures.items():
                if (times := row.slower_than(stagepipe, payload)) is not None:
                    yield Comparison(experiment, row.contestant.name, payload, figure.nbytes, times)


def targets(summary: Summary) -> Iterator[str]:
    """Judge the targets: faster than all in E1, with E2's arrays, and in E4, from 64 KiB on."""
    for experiment, what in (("E1", "E1"), ("E2", "E2's arrays"), ("E4", "E4")):
        judged = [found for found in comparisons(summary) if found.experiment == experiment and found.in_target]
        if judged:
            text = f"Faster than every contestant in {what} at payloads of 64 KiB and more: {_verdict(judged)}."
            yield paragraph(f"- {text}", "  ")


def _verdict(judged: Sequence[Comparison]) -> str:
    missed = [found for found in judged if found.met is False]
    undecided = [found for found in judged if found.met is None]
    met = len(judged) - len(missed) - len(undecided)
    if met == len(judged):
        return f"met in all {met}"
    parts = [f"met in {met} of {len(judged)}"]
    if undecided:
        parts.append(f"undecided in {len(undecided)}, whose intervals straddle 1: {_names(undecided)}")
    if missed:
        parts.append(f"**missed** in {len(missed)}, against {_names(missed)}")
    return "; ".join(parts)


def _names(compared: Iterable[Comparison]) -> str:
    by_contestant: dict[str, list[Comparison]] = {}
    for found in compared:
        by_contestant.setdefault(found.contestant, []).append(found)
    return ", ".join(f"{contestant} ({_listed(found)})" for contestant, found in by_contestant.items())


def _listed(compared: Iterable[Comparison]) -> str:
    return ", ".join(f"{found.payload} {format_three_digits(found.ratio.value)}" for found in compared)


def losses(summary: Summary) -> Iterator[str]:
    """List each contestant that is faster, or undecided, with some payload, and its time as a multiple of ours."""
    by_contestant: dict[tuple[str, str], list[Comparison]] = {}
    for found in comparisons(summary):
        if not found.met:
            by_contestant.setdefault((found.experiment, found.contestant), []).append(found)
    if not by_contestant:
        yield "No contestant is faster in this run."
        return
    yield from table(
        ("experiment", "contestant", "faster: payload and times stagepipe", "undecided"),
        (
            (
                experiment,
                contestant,
                _listed(one for one in found if one.met is False),
                _listed(one for one in found if one.met is None),
            )
            for (experiment, contestant), found in by_contestant.items()
        ),
    )
