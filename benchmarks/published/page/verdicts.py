"""The contestants that are faster than stagepipe, and whether the targets are met. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.common.figures import Estimate
from benchmarks.published.page.forms import table, three_digits
from benchmarks.published.page.words import causes, paragraph
from benchmarks.published.summary import Row, Summary

_TARGET_FROM_BYTES = 64 << 10
_ARRAY_CONTESTANTS = ("RawArray through NumPy",)
"""The contestants of E2 that end with an array, not with a list."""


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


def reference(experiment: str, rows: list[Row], contestant: str = "") -> Row | None:
    """Return the row of stagepipe that a contestant is compared with."""
    name = "stagepipe"
    if experiment == "E2":
        name = "stagepipe, array" if contestant in _ARRAY_CONTESTANTS else "stagepipe, list"
    return next((row for row in rows if row.contestant.name == name), None)


def comparisons(summary: Summary) -> Iterator[Comparison]:
    """Compare every contestant with stagepipe, for every payload."""
    for experiment, rows in summary.items():
        for row in rows:
            if row.contestant.is_stagepipe or not (stagepipe := reference(experiment, rows, row.contestant.name)):
                continue
            for payload, figure in row.figures.items():
                if (times := row.slower_than(stagepipe, payload)) is not None:
                    yield Comparison(experiment, row.contestant.name, payload, figure.nbytes, times)


def targets(summary: Summary) -> Iterator[str]:
    """Judge the targets: faster than all in E1, with E2's arrays, and in E4, from 64 KiB on."""
    for experiment, what in (("E1", "E1"), ("E2", "E2's arrays"), ("E4", "E4")):
        judged = [
            comparison
            for comparison in comparisons(summary)
            if comparison.experiment == experiment and comparison.in_target
        ]
        if judged:
            verdict = _verdict(judged)
            yield paragraph(
                f"- Faster than every contestant in {what} at payloads of 64 KiB and more: {verdict}.", "  "
            )


def _verdict(judged: Sequence[Comparison]) -> str:
    """Judge each comparison: met if every round agrees, missed if none does, and undecided otherwise."""
    missed = [comparison for comparison in judged if comparison.ratio.high < 1]
    undecided = [comparison for comparison in judged if comparison.ratio.low <= 1 <= comparison.ratio.high]
    met = len(judged) - len(missed) - len(undecided)
    if met == len(judged):
        return f"met in all {met}"
    parts = [f"met in {met} of {len(judged)}"]
    if undecided:
        parts.append(f"undecided in {len(undecided)}, where the rounds disagree: {_names(undecided)}")
    if missed:
        parts.append(f"**missed** in {len(missed)}, against {_names(missed)}")
    return "; ".join(parts)


def _names(compared: Sequence[Comparison]) -> str:
    payloads: dict[str, list[str]] = {}
    for comparison in compared:
        payloads.setdefault(comparison.contestant, []).append(_payload_and_ratio(comparison))
    return ", ".join(f"{contestant} ({', '.join(listed)})" for contestant, listed in payloads.items())


def _payload_and_ratio(comparison: Comparison) -> str:
    return f"{comparison.payload} {three_digits(comparison.ratio.value)}"


def losses(summary: Summary) -> Iterator[str]:
    """List each contestant that is faster with some payload and by how much; below the table, explain why."""
    faster = [comparison for comparison in comparisons(summary) if comparison.ratio.value < 1]
    payloads: dict[tuple[str, str], list[str]] = {}
    for comparison in faster:
        payloads.setdefault((comparison.experiment, comparison.contestant), []).append(_payload_and_ratio(comparison))
    if not faster:
        yield "No contestant is faster in this run."
        return
    yield "The contestants that are faster with some payload, and their time as a multiple of stagepipe's:"
    yield from table(
        ("experiment", "contestant", "payload and times stagepipe"),
        ((experiment, contestant, ", ".join(listed)) for (experiment, contestant), listed in payloads.items()),
    )
    yield ""
    yield from causes(payloads)
