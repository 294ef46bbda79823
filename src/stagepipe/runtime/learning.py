"""The hops' rules while a run goes: what their messages cost is read from the board, and a better rule written to it.

Runs on the supervisor's thread, a look every few ticks; the deciding is `plan.refine`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from stagepipe.plan import ENOUGH, Change, Choice, Plan, refine, seen_of
from stagepipe.timing import Board, Ledger
from stagepipe.transport import rule_word

_MOST_CHANGES = 8
"""A hop that goes to and fro more often than that is left as it is."""
_EARLY_S, _SOON_S, _LATER_S = 0.05, 0.02, 0.5
"""How often one looks: before anything has come, as soon as it has, and in the long run."""
_SLOWING = 50
"""A run is looked at so many times before it is twice as old."""


@dataclass
class _Hop:
    choice: Choice
    single: bool
    sending: Sequence[Ledger]
    receiving: Sequence[Ledger]
    looked: int = 0
    changes: list[Change] = field(default_factory=list)


class Learner:
    """Watches the hops whose mode is `auto` and whose threshold the config leaves open."""

    def __init__(self, plan: Plan, board: Board, groups: Sequence[Sequence[int]]) -> None:
        """`groups` are the processes' numbers of each of the plan's processes, the sink's last."""
        self._plan, self._board, self._begun_s = plan, board, 0.0
        self._hops = {
            number: _Hop(
                hop.choice,
                len(groups[number]) == len(groups[number + 1]) == 1,
                [board.region(process).sending_ledger for process in groups[number]],
                [board.region(process).receiving_ledger for process in groups[number + 1]],
            )
            for number, hop in enumerate(plan.hops)
            if hop.learns
        }

    @property
    def wait_s(self) -> float:
        """When to look again."""
        if not self._hops:
            return _LATER_S
        if not self._begun_s:
            return _EARLY_S
        return min(_SOON_S + (monotonic() - self._begun_s) / _SLOWING, _LATER_S)

    def look(self) -> None:
        """Read what has come since the last time, and change the rules that it shows to be wrong."""
        for number, hop in self._hops.items():
            if len(hop.changes) >= _MOST_CHANGES:
                continue
            count = sum(ledger.count for ledger in hop.receiving)
            if count < max(2 * hop.looked, ENOUGH):
                continue  # a look takes half a millisecond of the caller's interpreter, and half as many prove no more
            hop.looked = count
            self._begun_s = self._begun_s or monotonic()
            change = refine(hop.choice, seen_of(hop.sending, hop.receiving), self._plan.curves, single=hop.single)
            if change is not None:
                hop.changes.append(change)
                hop.choice = change.after
                rule = rule_word(change.after.threshold_bytes, change.after.large_in_pipe)
                self._board.rule(number)[0] = rule

    def changes(self, number: int) -> tuple[Change, ...]:
        """How the rule of a hop has changed, the oldest first."""
        return tuple(self._hops[number].changes) if number in self._hops else ()
