"""Corrects the hops' transport rules during a run: reads measured message costs from the board and writes better rules.

Runs on the supervisor's thread, in the caller's process. `costs.revise_rule` decides; this module schedules the checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from stagepipe.costs import MIN_MESSAGES_FOR_MEDIAN, TransportRuleChange, revise_rule, summarize_ledgers
from stagepipe.plan import Plan
from stagepipe.timing import Board, CostLedger
from stagepipe.transport import TransportRule

_MAX_RULE_CHANGES = 8
"""After this many changes a hop keeps its rule, because it would only alternate."""
_INTERVAL_BEFORE_MESSAGES_S = 0.05
"""The check interval until enough messages have arrived for a first check."""
_MIN_CHECK_INTERVAL_S = 0.02
"""The check interval right after the first check; it grows with the age of the run."""
_MAX_CHECK_INTERVAL_S = 0.5
"""The check interval of a long run, and of a run without adaptive hops."""
_CHECKS_PER_DOUBLING = 10
"""About this many checks fit in the time in which the age of the run doubles."""


@dataclass(kw_only=True)
class _AdaptiveHop:
    rule: TransportRule
    is_one_to_one: bool
    sending_ledgers: Sequence[CostLedger]
    receiving_ledgers: Sequence[CostLedger]
    checked_message_count: int = 0
    rule_changes: list[TransportRuleChange] = field(default_factory=list)


class AdaptiveTransport:
    """Checks the hops with mode `auto` and without a threshold in the config."""

    def __init__(self, plan: Plan, board: Board, process_indices_by_group: Sequence[Sequence[int]]) -> None:
        """See `RunResources.process_indices_by_group` for the argument."""
        self._plan = plan
        self._board = board
        self._first_check_at_s = 0.0
        self._hops = {
            hop_index: _AdaptiveHop(
                rule=hop.rule,
                is_one_to_one=len(process_indices_by_group[hop_index])
                == len(process_indices_by_group[hop_index + 1])
                == 1,
                sending_ledgers=[
                    board.region(process_index).send_ledger for process_index in process_indices_by_group[hop_index]
                ],
                receiving_ledgers=[
                    board.region(process_index).receive_ledger
                    for process_index in process_indices_by_group[hop_index + 1]
                ],
            )
            for hop_index, hop in enumerate(plan.hops)
            if hop.is_adaptive
        }

    @property
    def time_to_next_check_s(self) -> float:
        """Seconds until the next check."""
        if not self._hops:
            return _MAX_CHECK_INTERVAL_S
        if not self._first_check_at_s:
            return _INTERVAL_BEFORE_MESSAGES_S
        return min(
            _MIN_CHECK_INTERVAL_S + (monotonic() - self._first_check_at_s) / _CHECKS_PER_DOUBLING, _MAX_CHECK_INTERVAL_S
        )

    def check(self) -> None:
        """Read the costs of the hops with enough new messages, and correct the rules that the costs contradict."""
        for hop_index, hop in self._hops.items():
            if len(hop.rule_changes) >= _MAX_RULE_CHANGES:
                continue
            count = sum(ledger.message_count for ledger in hop.receiving_ledgers)
            if count < max(2 * hop.checked_message_count, MIN_MESSAGES_FOR_MEDIAN):
                continue  # a check holds the caller's GIL for half a millisecond; fewer messages add no evidence
            hop.checked_message_count = count
            self._first_check_at_s = self._first_check_at_s or monotonic()
            change = revise_rule(
                hop.rule,
                summarize_ledgers(hop.sending_ledgers, hop.receiving_ledgers),
                self._plan.curves,
                is_one_to_one=hop.is_one_to_one,
            )
            if change is not None:
                hop.rule_changes.append(change)
                hop.rule = change.after
                self._board.rule_word(hop_index)[0] = change.after.word

    def get_rule_changes(self, hop_index: int) -> tuple[TransportRuleChange, ...]:
        """Return the changes of a hop's rule, oldest first; empty if the hop is not adaptive."""
        return tuple(self._hops[hop_index].rule_changes) if hop_index in self._hops else ()
