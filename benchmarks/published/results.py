"""The results file, stagepipe.published/1, and its turns as rows: medians and ratios to stagepipe, with intervals.

The file is written after every turn. A run resumes a file that is not finished and has the same settings, machine and
versions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.command import is_same_machine, replace_text
from benchmarks.common.figures import Estimate, estimate, quotient
from benchmarks.published.experiments import EXPERIMENTS
from benchmarks.published.model import Cell, Contestant, Turn

SCHEMA = "stagepipe.published/1"


class Results:
    """All turns so far, with the settings, the machine and the command."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        """Read the file if it exists. `about` has the settings, the machine and the command."""
        self._path = path
        self.about = {"schema": SCHEMA, "finished": False, **about}
        self.turns: list[Turn] = []
        self.resumed = False
        if path.exists():
            document = json.loads(path.read_text())
            if _can_resume(document, self.about):
                self.about, self.turns, self.resumed = document, read_turns(document), True
                del self.about["turns"]
        self._begin_s = time.monotonic() - self.about.get("took_s", 0.0)

    def has(self, experiment: str, contestant: str, number: int) -> bool:
        return any(
            (turn.experiment, turn.contestant, turn.number) == (experiment, contestant, number) for turn in self.turns
        )

    def add(self, turn: Turn) -> None:
        """Add a turn, and write the file."""
        self.turns.append(turn)
        self._write()

    def finish(self, **more: Any) -> None:
        """Mark the results as finished, and write the file."""
        self.about.update(finished=True, **more)
        self._write()

    def _write(self) -> None:
        self.about["took_s"] = time.monotonic() - self._begin_s  # an interrupted run goes on
        turns = ",\n".join(json.dumps(asdict(turn), separators=(",", ":")) for turn in self.turns)
        header = json.dumps(self.about, indent=1)[:-2]
        replace_text(self._path, f'{header},\n "turns": [\n{turns}\n]}}\n')


def read_turns(document: dict[str, Any]) -> list[Turn]:
    """Return the turns in the contents of a file."""
    return [Turn(**{**turn, "cells": [Cell(**cell) for cell in turn["cells"]]}) for turn in document["turns"]]


def _can_resume(document: dict[str, Any], about: dict[str, Any]) -> bool:
    """Return whether the file is unfinished and has the same settings, machine and versions. The load may differ."""
    return (
        document.get("schema") == SCHEMA
        and not document["finished"]
        and document["settings"] == about["settings"]
        and is_same_machine(document["machine"], about["machine"])
    )


@dataclass(frozen=True)
class Figure:
    """The measurements of a contestant with a payload over all rounds, or the reason why there are none."""

    payload: str
    nbytes: int
    ns: Estimate | None = None
    """The median of the rounds' medians. Transfers of a turn are alike, so pooling them would hide what rounds differ
    by."""
    rounds: int = 0
    best_ns: int = 0
    parts_ns: dict[str, float] = field(default_factory=dict)
    cpu_ns: float = 0.0
    peak_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """A contestant with its figures by payload, and what its turns told besides."""

    contestant: Contestant
    figures: dict[str, Figure]
    reports: list[dict[str, Any]]

    def slower_than(self, other: Row, payload: str) -> Estimate | None:
        """Return this row's figure divided by `other`'s, or None if one of them has none."""
        own, others = self.figures[payload].ns, other.figures[payload].ns
        return quotient(own, others) if own and others else None

    @property
    def runs_with(self) -> str:
        """Return what the contestant found itself running with, such as `uvloop 0.23.0`."""
        return next((report["runs_with"] for report in self.reports if "runs_with" in report), "")


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
    cells = [cell for turn in turns for cell in turn.cells if cell.payload == payload and cell.ns]
    if not cells:
        reasons = [cell.reason for turn in turns for cell in turn.cells if cell.payload == payload and cell.reason]
        return Figure(payload, nbytes, reason=next(iter([*reasons, *(turn.reason for turn in turns)]), ""))
    return Figure(
        payload,
        nbytes,
        ns=estimate([median(cell.ns) for cell in cells]),
        rounds=len(cells),
        best_ns=min(ns for cell in cells for ns in cell.ns),
        parts_ns={name: median(cell.parts_ns[name] for cell in cells) for name in cells[0].parts_ns},
        cpu_ns=median(cell.cpu_ns for cell in cells),
        peak_bytes=max(cell.peak_bytes for cell in cells),
    )
