"""Every contestant's turns: in each round everybody has one, in another order every time, in a fresh process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from published_.keeping import Results
from published_.launching import run_turn
from published_.model import Contestant, Job, Turn
from published_.needs import lacking
from published_.registry import EXPERIMENTS
from side_by_side.turns import order

_ENOUGH, _LONG_S = 2, 5.0
Progress = Callable[[int, int, str], None]
"""Told how many turns are done, of how many, and whose is next."""


@dataclass(frozen=True)
class Settings:
    """What a run does. `budgets_s` is a turn's time for each payload, by experiment."""

    experiments: tuple[str, ...]
    only: tuple[str, ...]
    size: str
    rounds: int
    budgets_s: dict[str, float]
    turn_limit_s: float
    pinned: bool = True
    corrupt: str = ""

    def chosen(self, experiment: str) -> list[Contestant]:
        """The contestants of an experiment that this run has."""
        return [each for each in EXPERIMENTS[experiment].contestants if not self.only or each.name in self.only]


def run_all(settings: Settings, results: Results, progress: Progress) -> None:
    """Take the turns that the results do not have yet."""
    wanted = list(_schedule(settings))
    for done, (experiment, who, number) in enumerate(wanted):
        progress(done, len(wanted), f"{experiment} {who.name}")
        if not results.has(experiment, who.name, number) and not _long_enough(settings, results, experiment, who):
            results.add(_turn(settings, experiment, who, number))
    progress(len(wanted), len(wanted), "")


def _long_enough(settings: Settings, results: Results, experiment: str, who: Contestant) -> bool:
    """Two rounds are enough for one whose turns are long, in a short run: it is far behind, and the others wait."""
    if settings.size == "full" or who.is_stagepipe:
        return False
    mine = [turn for turn in results.turns if (turn.experiment, turn.contestant) == (experiment, who.name)]
    return len(mine) >= _ENOUGH and fmean(turn.took_s for turn in mine) > _LONG_S


def _schedule(settings: Settings) -> Iterator[tuple[str, Contestant, int]]:
    for experiment in settings.experiments:
        chosen = {each.name: each for each in settings.chosen(experiment)}
        for number in range(settings.rounds if chosen else 0):
            for name in order(list(chosen), number):
                yield experiment, chosen[name], number


def _turn(settings: Settings, experiment: str, who: Contestant, number: int) -> Turn:
    reason = lacking(who)
    if reason:
        return Turn(experiment, who.name, number, reason=reason)
    job = Job(
        experiment=experiment,
        contestant=who.name,
        size=settings.size,
        budget_s=settings.budgets_s[experiment],
        pinned=settings.pinned,
        corrupt=who.name == settings.corrupt,
    )
    return run_turn(who, job, number, settings.turn_limit_s)


def missing(names: Sequence[str]) -> list[str]:
    """Of the names, those that no contestant bears."""
    known = {each.name for experiment in EXPERIMENTS.values() for each in experiment.contestants}
    return [name for name in names if name not in known]
