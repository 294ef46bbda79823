"""The turns: each contestant has one in each round, in a different order every time, in a new process.

This process, which runs the benchmark, adopts the orphans of a turn. So it also finds what a server has put into the
background, and ends it by its id.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from statistics import fmean

from benchmarks.common.turn import TurnError, order, run_turn
from benchmarks.published.experiments import EXPERIMENTS, resolve
from benchmarks.published.model import Cell, Contestant, Job, Turn, unmet_need
from benchmarks.published.results import Results

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
    """Take the turns that are missing in the results. The progress is shown every half a minute."""
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
