"""The contestants that are faster than stagepipe, and whether the targets are met. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.common.figures import Estimate
from benchmarks.published.forms import paragraph, table, three_digits
from benchmarks.published.results import Row, Summary

_TARGET_FROM_BYTES = 64 << 10
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
    def is_missed(self) -> bool:
        """Return whether the contestant is faster: the whole interval lies below 1."""
        return self.ratio.high < 1

    @property
    def is_undecided(self) -> bool:
        """Return whether the interval straddles 1."""
        return self.ratio.low <= 1 <= self.ratio.high


def reference(experiment: str, rows: Sequence[Row], row: Row | None = None) -> Row | None:
    """Return the row of stagepipe that a row is compared with: the one that does the same work, if it is known."""
    name = _REFERENCES.get(experiment, "stagepipe")
    if row and row.contestant.name in _ARRAY_CONTESTANTS:
        name = "stagepipe, array"
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
    missed = [found for found in judged if found.is_missed]
    undecided = [found for found in judged if found.is_undecided]
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
    return ", ".join(f"{found.payload} {three_digits(found.ratio.value)}" for found in compared)


def losses(summary: Summary) -> Iterator[str]:
    """List each contestant that is faster, or undecided, with some payload, and its time as a multiple of ours."""
    by_contestant: dict[tuple[str, str], list[Comparison]] = {}
    for found in comparisons(summary):
        if found.is_missed or found.is_undecided:
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
                _listed(one for one in found if one.is_missed),
                _listed(one for one in found if one.is_undecided),
            )
            for (experiment, contestant), found in by_contestant.items()
        ),
    )
