"""Who is ahead of stagepipe, and whether the promises hold. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from published_.page.forms import table, three
from published_.page.words import causes, paragraph
from published_.summary import Row, Summary
from side_by_side.figures import Estimate

_PROMISED_FROM_BYTES = 64 << 10
_ARRAYS = ("RawArray through NumPy",)
"""Of E2: what ends in an array, and not in a list."""


@dataclass(frozen=True)
class Comparison:
    """A contestant's time, of stagepipe's, with a payload."""

    experiment: str
    contestant: str
    payload: str
    nbytes: int
    ratio: Estimate

    @property
    def promised(self) -> bool:
        """Of those that stagepipe shall be ahead of: arrays of 64 KiB and more."""
        if self.experiment == "E2" and self.contestant not in _ARRAYS:
            return False
        return self.nbytes >= _PROMISED_FROM_BYTES


def reference(experiment: str, rows: list[Row], contestant: str = "") -> Row | None:
    """The row of ours that a contestant is compared with."""
    name = "stagepipe"
    if experiment == "E2":
        name = "stagepipe, array" if contestant in _ARRAYS else "stagepipe, list"
    return next((row for row in rows if row.contestant.name == name), None)


def comparisons(summary: Summary) -> Iterator[Comparison]:
    """Of everybody with every payload."""
    for experiment, rows in summary.items():
        for row in rows:
            if row.contestant.is_stagepipe or not (ours := reference(experiment, rows, row.contestant.name)):
                continue
            for payload, figure in row.figures.items():
                if (found := row.slower_than(ours, payload)) is not None:
                    yield Comparison(experiment, row.contestant.name, payload, figure.nbytes, found)


def promises(summary: Summary) -> Iterator[str]:
    """Ahead of all in E1, with E2's arrays, and in E4 from 64 KiB on."""
    for experiment, what in (("E1", "E1"), ("E2", "E2's arrays"), ("E4", "E4")):
        judged = [each for each in comparisons(summary) if each.experiment == experiment and each.promised]
        if judged:
            verdict = _verdict(judged)
            yield paragraph(f"- Ahead of every contestant in {what} at payloads of 64 KiB and more: {verdict}.", "  ")


def _verdict(judged: Sequence[Comparison]) -> str:
    """Held where each round says so, missed where none does; in between they cannot be told apart."""
    missed = [each for each in judged if each.ratio.high < 1]
    open_ = [each for each in judged if each.ratio.low <= 1 <= each.ratio.high]
    held = len(judged) - len(missed) - len(open_)
    if held == len(judged):
        return f"held in all {held}"
    parts = [f"held in {held} of {len(judged)}"]
    if open_:
        parts.append(f"in {len(open_)} the rounds do not agree, with {_names(open_)}")
    if missed:
        parts.append(f"**missed** in {len(missed)}, by {_names(missed)}")
    return "; ".join(parts)


def _names(found: Sequence[Comparison]) -> str:
    where: dict[str, list[str]] = {}
    for each in found:
        where.setdefault(each.contestant, []).append(f"{each.payload} {three(each.ratio.value)}")
    return ", ".join(f"{who} ({', '.join(payloads)})" for who, payloads in where.items())


def losses(summary: Summary) -> Iterator[str]:
    """Each contestant that is ahead somewhere: where, by how much; and below the table, why."""
    ahead = [each for each in comparisons(summary) if each.ratio.value < 1]
    places: dict[tuple[str, str], list[str]] = {}
    for each in ahead:
        places.setdefault((each.experiment, each.contestant), []).append(f"{each.payload} {three(each.ratio.value)}")
    if not ahead:
        yield "Nowhere, in this run."
        return
    yield "Of stagepipe's time the others take, where that is less:"
    yield from table(
        ("experiment", "contestant", "with the payload, times stagepipe"),
        ((experiment, contestant, ", ".join(where)) for (experiment, contestant), where in places.items()),
    )
    yield ""
    yield from causes(places)
