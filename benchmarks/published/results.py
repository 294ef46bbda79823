"""The experiments; their turns; the results file, stagepipe.published/1; and its rows.

Each contestant has a turn in each round, in a different order every time, in a new process. This process, which runs
the benchmark, adopts the orphans of a turn. So it also finds the background processes of a server, and ends each by its
id. The file is written after every turn. A run resumes a file that is not finished and has the same settings,
machine and versions. Rows are medians over the rounds and ratios to stagepipe, with intervals.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.common.command import is_same_machine, replace_text
from benchmarks.common.figures import Estimate, estimate, quotient
from benchmarks.common.turn import TurnError, order, run_turn
from benchmarks.published import Cell, Contestant, Experiment, Job, Turn, e1, e2, e4, e5, unmet_need

SCHEMA = "stagepipe.published/1"
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (e1.EXPERIMENT, e2.EXPERIMENT, e4.EXPERIMENT, e5.CALLS, e5.QUEUES)
}


def contestant(experiment: str, name: str) -> Contestant:
    """Return a contestant by its name. Raise KeyError if there is none."""
    return {known.name: known for known in EXPERIMENTS[experiment].contestants}[name]


def resolve(text: str) -> Any:
    """Import and return the object named by "module:name"."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


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
        self.about["took_s"] = time.monotonic() - self._begin_s  # an interrupted run continues
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
    """The median of the rounds' medians. Transfers of a turn are alike, so pooling them would hide the differences
    between rounds."""
    rounds: int = 0
    best_ns: int = 0
    parts_ns: dict[str, float] = field(default_factory=dict)
    cpu_ns: float = 0.0
    peak_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """A contestant with its figures by payload, and other facts that its turns reported."""

    contestant: Contestant
    figures: dict[str, Figure]
    reports: list[dict[str, Any]]

    def slower_than(self, other: Row, payload: str) -> Estimate | None:
        """Return this row's figure divided by `other`'s, or None if one of them has none."""
        own, others = self.figures[payload].ns, other.figures[payload].ns
        return quotient(own, others) if own and others else None

    @property
    def runs_with(self) -> str:
        """Return the software that the contestant found, such as `uvloop 0.23.0`."""
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


_ENOUGH_TURNS = 3
_LONG_TURN_S = 8.0
_PROGRESS_EVERY_S = 30.0


@dataclass(frozen=True)
class Settings:
    """The settings of a run. `budgets_s` is the time of a turn for each payload, by experiment."""

    experiments: tuple[str, ...]
    only: tuple[str, ...]
    size: str
    rounds: int
    budgets_s: dict[str, float]
    turn_limit_s: float
    pinned: bool = True
    corrupt: str = ""

    def chosen(self, experiment: str) -> list[Contestant]:
        """Return the contestants of an experiment that take part in this run."""
        return [
            contestant
            for contestant in EXPERIMENTS[experiment].contestants
            if not self.only or contestant.name in self.only
        ]


def run_all(settings: Settings, results: Results, show_progress: Callable[[str], None]) -> None:
    """Take the turns that are missing in the results, and show the progress every half a minute."""
    wanted, shown_s = list(_schedule(settings)), time.monotonic()
    for done, (experiment, contestant, round_number) in enumerate(wanted):
        if time.monotonic() - shown_s > _PROGRESS_EVERY_S:
            shown_s = time.monotonic()
            show_progress(f"{done} of {len(wanted)}: {experiment} {contestant.name}")
        if not results.has(experiment, contestant.name, round_number) and not _has_enough_turns(
            settings, results, experiment, contestant
        ):
            results.add(_take_turn(settings, experiment, contestant, round_number))


def _has_enough_turns(settings: Settings, results: Results, experiment: str, contestant: Contestant) -> bool:
    """Return whether a contestant has long turns and has had three of them, enough unless the run is full-size.

    More turns would only delay the others. stagepipe always takes all its turns.
    """
    if settings.size == "full" or contestant.is_stagepipe:
        return False
    turns = [turn for turn in results.turns if (turn.experiment, turn.contestant) == (experiment, contestant.name)]
    return len(turns) >= _ENOUGH_TURNS and fmean(turn.took_s for turn in turns) > _LONG_TURN_S


def _schedule(settings: Settings) -> Iterator[tuple[str, Contestant, int]]:
    for experiment in settings.experiments:
        chosen = {contestant.name: contestant for contestant in settings.chosen(experiment)}
        for round_number in range(settings.rounds if chosen else 0):
            for name in order(list(chosen), round_number):
                yield experiment, chosen[name], round_number


def _take_turn(settings: Settings, experiment: str, contestant: Contestant, round_number: int) -> Turn:
    reason = unmet_need(contestant)
    if reason:
        return Turn(experiment, contestant.name, round_number, reason=reason)
    job = Job(
        experiment=experiment,
        contestant=contestant.name,
        size=settings.size,
        budget_s=settings.budgets_s[experiment],
        pinned=settings.pinned,
        corrupt=contestant.name == settings.corrupt,
    )
    turn = Turn(experiment, contestant.name, round_number, load_average=os.getloadavg()[0])
    launch, begin_s = resolve(contestant.launch) if contestant.launch else None, time.monotonic()
    try:
        document = run_turn(
            "benchmarks.published.turn", asdict(job), settings.turn_limit_s, keeps_partial=True, launch=launch
        )
    except TurnError as error:
        document = {"reason": str(error), "cells": []}
    if "wrong" in document:
        raise SystemExit(document["wrong"])
    cells = [Cell(**cell) for cell in document["cells"]]
    return replace(turn, took_s=time.monotonic() - begin_s, **{**document, "cells": cells})
