"""The turns as rows: medians and ratios to stagepipe, both with their intervals. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from benchmarks.common.figures import Estimate, estimate, ratio
from benchmarks.published.model import Cell, Contestant, Turn
from benchmarks.published.registry import EXPERIMENTS


@dataclass(frozen=True)
class Figure:
    """The measurements of a contestant with a payload over all rounds, or the reason why there are none."""

    payload: str
    nbytes: int
    ns: Estimate | None = None
    rounds_ns: dict[int, float] = field(default_factory=dict)
    """The median of each round."""
    best_ns: int = 0
    parts_ns: dict[str, float] = field(default_factory=dict)
    cpu_ns: float = 0.0
    peak_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """A contestant with its figures by payload, and the figures from stagepipe's own reports."""

    contestant: Contestant
    figures: dict[str, Figure]
    reports: list[dict[str, Any]]

    def slower_than(self, other: Row, payload: str) -> Estimate | None:
        """Return this row's time divided by `other`'s, round by round, or None if one of them has no figure."""
        own, others = self.figures[payload].rounds_ns, other.figures[payload].rounds_ns
        both = sorted(own.keys() & others.keys())
        return ratio([own[number] for number in both], [others[number] for number in both]) if both else None


Summary = dict[str, list[Row]]


def summarise(turns: Sequence[Turn], size: str) -> Summary:
    """Return the rows of each experiment with at least one turn, in the order of its contestants."""
    return {
        name: list(_rows(name, turns, size)) for name in EXPERIMENTS if any(turn.experiment == name for turn in turns)
    }


def _rows(name: str, turns: Sequence[Turn], size: str) -> Iterator[Row]:
    experiment = EXPERIMENTS[name]
    for contestant in experiment.contestants:
        contestant_turns = [turn for turn in turns if (turn.experiment, turn.contestant) == (name, contestant.name)]
        if contestant_turns:
            figures = {
                payload.name: _figure(payload.name, payload.nbytes, contestant_turns)
                for payload in experiment.payloads[size]
            }
            yield Row(contestant, figures, [turn.told for turn in contestant_turns if turn.told])


def _figure(payload: str, nbytes: int, turns: Sequence[Turn]) -> Figure:
    cells = {turn.number: cell for turn in turns for cell in turn.cells if cell.payload == payload and cell.ns}
    if not cells:
        reasons = [cell.reason for turn in turns for cell in turn.cells if cell.payload == payload and cell.reason]
        return Figure(payload, nbytes, reason=next(iter([*reasons, *(turn.reason for turn in turns)]), ""))
    values = [ns for cell in cells.values() for ns in cell.ns]
    return Figure(
        payload,
        nbytes,
        ns=estimate(values),
        rounds_ns={number: median(cell.ns) for number, cell in cells.items()},
        best_ns=min(values),
        parts_ns=_parts(list(cells.values())),
        cpu_ns=fmean(cell.cpu_ns for cell in cells.values()),
        peak_bytes=max(cell.peak_bytes for cell in cells.values()),
    )


def _parts(cells: Sequence[Cell]) -> dict[str, float]:
    return {name: median(cell.parts_ns[name] for cell in cells) for name in cells[0].parts_ns}
