"""The turns: each contestant has one in each round, in a different order every time, in a new process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.common.turns import order
from benchmarks.published.keeping import Results
from benchmarks.published.launching import run_turn
from benchmarks.published.model import Contestant, Job, Turn
from benchmarks.published.needs import unmet_need
from benchmarks.published.registry import EXPERIMENTS

_ENOUGH_TURNS = 2
_LONG_TURN_S = 5.0
Progress = Callable[[int, int, str], None]
"""Called with the number of turns done, the number of all turns, and the name of the next one."""


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


def run_all(settings: Settings, results: Results, progress: Progress) -> None:
    """Take the turns that are missing in the results."""
    wanted = list(_schedule(settings))
    for done, (experiment, contestant, round_number) in enumerate(wanted):
        progress(done, len(wanted), f"{experiment} {contestant.name}")
        if not results.has(experiment, contestant.name, round_number) and not _has_enough_turns(
            settings, results, experiment, contestant
        ):
            results.add(_take_turn(settings, experiment, contestant, round_number))
    progress(len(wanted), len(wanted), "")


def _has_enough_turns(settings: Settings, results: Results, experiment: str, contestant: Contestant) -> bool:
    """Return whether a contestant has long turns and has had two of them, which is enough unless the run is full-size.

    Such a contestant is far behind, and more turns would only delay the others. stagepipe always takes all its turns.
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
    return run_turn(contestant, job, round_number, settings.turn_limit_s)


def unknown_names(names: Sequence[str]) -> list[str]:
    """Return the names that no contestant has."""
    known = {contestant.name for experiment in EXPERIMENTS.values() for contestant in experiment.contestants}
    return [name for name in names if name not in known]
