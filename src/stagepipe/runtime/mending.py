"""What is done about a worker's death: another one, a skip, or the end of the run. Pure.

A stage's item that killed several workers one after the other is poison: it is not tried for ever. What was not at
work on an item, or on one that did not kill before, is started again, at once the first time, then after a while, as
often as the run's `max_restarts` allows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stagepipe.core import Key
from stagepipe.core.units import format_ns
from stagepipe.plan import StagePlan

TRIES = 3
"""How many workers an item may kill before it is poison, where `retries` does not say it: one kill may be anybody's."""
_STARTS = 3
"""How many workers of a place may die of themselves while they build their stages, one after the other."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 5.0
_SHORT_LIFE_NS = 1_000_000_000
_TOLD = 5


@dataclass(frozen=True)
class Death:
    """A worker that died. `key` is the item of `stage` that it was at, or empty; `items`: one of how many."""

    stage: StagePlan
    worker: int
    place: int
    pid: int
    cause: str
    at_ns: int
    epoch: int = 0
    key: Key = ()
    item: str = ""
    items: int = 1
    lived_ns: int | None = None  # since it was ready; None: it was not
    fault: bool = False  # a memory fault of its own
    killed: bool = False  # by somebody, or for want of memory: it may go well the next time
    trace: str = ""

    @property
    def told(self) -> str:
        """It in a sentence."""
        item = f", item {self.item}" if self.item else ""
        starting = "" if self.lived_ns is not None else " while it was starting"
        return f"stage {self.stage.name}, worker {self.worker}{item} (pid {self.pid}) {self.cause}{starting}"


@dataclass(frozen=True)
class Fail:
    """The run ends, with this message."""

    message: str


@dataclass(frozen=True)
class Restart:
    """Another worker begins there after a while. `poison`: the item is skipped from now on, after so many attempts.

    `alone`: the items that it was at are tried one by one.
    """

    after_s: float
    poison: int = 0
    alone: bool = False


@dataclass
class Mending:
    """The deaths of a run and what they add up to."""

    max_restarts: int
    stateful: str = ""
    """The name of a stage that cannot be begun again in the middle of an epoch."""
    deaths: list[Death] = field(default_factory=list)
    _kills: Counter[tuple[int, str, Key]] = field(default_factory=Counter)
    _starts: Counter[int] = field(default_factory=Counter)
    _hasty: Counter[int] = field(default_factory=Counter)

    def decide(self, death: Death) -> Restart | Fail:
        """What to do about it."""
        self.deaths.append(death)
        if self.stateful:
            return Fail(
                f"{death.told}; stage {self.stateful} is `stateful: true` and would have to begin anew, "
                "so a crash ends the run"
            )
        if death.lived_ns is None and not death.killed:
            self._starts[death.place] += 1
            if self._starts[death.place] >= _STARTS:
                return Fail(f"{death.told}, {_STARTS} times in a row")
        elif death.lived_ns is not None:
            self._starts[death.place] = 0
        poison = self._poison(death)
        if poison and death.stage.on_error == "fail":
            again = "" if poison == 1 else f"; this item has killed {poison} workers"
            mend = "; with `on_error: skip` on the stage it would go to the dead letters, and the run on"
            return Fail(f"{death.told}{again}{'' if death.fault else mend}")
        if len(self.deaths) > self.max_restarts:
            return Fail(self._history(death))
        return Restart(self._wait_s(death), poison, alone=death.items > 1)

    def _poison(self, death: Death) -> int:
        """How many workers the item has killed, if that is too many; else 0."""
        if not death.key or death.items > 1:
            return 0
        place = (death.epoch, death.stage.name, death.key)
        self._kills[place] += 1
        retries = death.stage.retries
        tries = retries + 1 if retries is not None else 1 if death.fault else TRIES
        return self._kills[place] if self._kills[place] >= tries else 0

    def _wait_s(self, death: Death) -> float:
        if death.lived_ns is not None and death.lived_ns > _SHORT_LIFE_NS:
            self._hasty[death.place] = 0
            return 0.0
        self._hasty[death.place] += 1
        hasty = self._hasty[death.place] - 2  # once is no habit
        return 0.0 if hasty < 0 else min(_FIRST_WAIT_S * 2.0**hasty, _LONGEST_WAIT_S)

    def _history(self, death: Death) -> str:
        if not self.max_restarts:
            return f"{death.told}; `max_restarts: 0` lets no worker be started again"
        first = self.deaths[0].at_ns
        lines = [f"  after {format_ns(each.at_ns - first)}: {each.told}" for each in self.deaths[-_TOLD:]]
        more = len(self.deaths) - len(lines)
        return "\n".join(
            (
                f"{death.told}; workers died {len(self.deaths)} times, and `max_restarts` is {self.max_restarts}:",
                *([f"  {more} before"] if more else []),
                *lines,
            )
        )
