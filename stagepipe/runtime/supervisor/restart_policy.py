"""Decides how a run goes on after a death, and after an item that does not fit into shared memory. Pure.

An item that kills one worker after another is poison: `on_error` decides whether the run skips it or fails. After any
other death the worker is restarted, up to `max_restarts` times a run: at once the first time, then with growing delays.
Where an item does not fit, the windows shrink, or the run fails.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto

from stagepipe.core import Key, format_ns
from stagepipe.plan import StagePlan
from stagepipe.runtime.flow import SegmentWindows

DEFAULT_MAX_KILLS_PER_ITEM = 3
"""How many workers an item may kill before it is poison, unless `retries` is set. One kill may have another cause."""
_MAX_START_FAILURES = 3
"""How many workers of a slot may die in a row while they build their stages. Kills from outside do not count."""
_MIN_BACKOFF_S = 0.1
"""Delay before the third quick restart of a slot; it doubles with each further one, up to `_MAX_BACKOFF_S`."""
_UNDELAYED_RESTARTS = 2
_MAX_BACKOFF_S = 5.0
_MIN_HEALTHY_UPTIME_NS = 1_000_000_000
"""A worker that was ready for longer than this is restarted without delay."""
_MAX_DEATHS_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class WorkerDeath:
    """A worker that died. `key`: the item that `stage` was processing, or (); `item_count`: of a batch, its size."""

    stage: StagePlan
    worker: int
    process_index: int
    pid: int
    cause: str
    died_at_ns: int
    epoch: int = 0
    key: Key = ()
    item: str = ""
    item_count: int = 1
    uptime_ns: int | None = None  # since it became ready; None: it never was
    is_memory_fault: bool = False  # SIGSEGV or SIGBUS: its item is not retried unless `retries` says so
    is_order_point: bool = False  # its stage has no `on_error`
    was_killed_externally: bool = False  # by another process or the out-of-memory killer: a retry may succeed
    trace: str = ""

    @property
    def description(self) -> str:
        """The death in a sentence: stage, worker, item, pid and cause."""
        item = f", item {self.item}" if self.item else ""
        starting = "" if self.uptime_ns is not None else " during start-up"
        return f"stage {self.stage.row}, worker {self.worker}{item} (pid {self.pid}) {self.cause}{starting}"


@dataclass(frozen=True)
class FailDecision:
    """The run fails with this message."""

    message: str


@dataclass(frozen=True)
class RestartDecision:
    """The worker is restarted after a delay.

    `poison_kill_count`: not 0 if the item is skipped from now on, after it killed so many workers.
    `is_unbatching_needed`: process the items of the batch one by one, to find the one that kills.
    """

    delay_s: float
    poison_kill_count: int = 0
    is_unbatching_needed: bool = False


@dataclass(kw_only=True)
class RestartPolicy:
    """Decides on each death of a run from all deaths so far."""

    max_restarts: int
    stateful_stage: str = ""
    """The name of a `stateful: true` stage, which cannot restart in the middle of an epoch; "" if there is none."""
    deaths: list[WorkerDeath] = field(default_factory=list)
    _kills_by_item: Counter[tuple[int, str, Key]] = field(default_factory=Counter)
    _start_failures_by_process: Counter[int] = field(default_factory=Counter)
    _quick_deaths_by_process: Counter[int] = field(default_factory=Counter)

    def decide(self, death: WorkerDeath) -> RestartDecision | FailDecision:
        """Decide on a death, and remember it for the decisions to come."""
        self.deaths.append(death)
        if self.stateful_stage:
            return FailDecision(
                f"{death.description}; stage {self.stateful_stage} has `stateful=true` and cannot restart within an "
                "epoch, so a crash ends the run"
            )
        if death.uptime_ns is None and not death.was_killed_externally:
            self._start_failures_by_process[death.process_index] += 1
            if self._start_failures_by_process[death.process_index] >= _MAX_START_FAILURES:
                return FailDecision(f"{death.description}, {_MAX_START_FAILURES} times in a row")
        elif death.uptime_ns is not None:
            self._start_failures_by_process[death.process_index] = 0
        kill_count = self._count_poison_kills(death)
        if kill_count and death.stage.on_error == "fail":
            suffix = "" if kill_count == 1 else f"; this item has killed {kill_count} workers"
            setting = f"{death.stage.config_path}.on_error=skip"
            hint = f"; set `{setting}` to send the item to the dead letters and continue"
            has_hint = not (death.is_memory_fault or death.is_order_point)
            return FailDecision(f"{death.description}{suffix}{hint if has_hint else ''}")
        if len(self.deaths) > self.max_restarts:
            return FailDecision(self._describe_deaths(death))
        return RestartDecision(self._compute_backoff_s(death), kill_count, is_unbatching_needed=death.item_count > 1)

    def _count_poison_kills(self, death: WorkerDeath) -> int:
        """How many workers the item has killed, if it is poison; else 0."""
        if not death.key or death.item_count > 1:
            return 0
        item_id = (death.epoch, death.stage.name, death.key)
        self._kills_by_item[item_id] += 1
        retries = death.stage.retries
        max_kills = retries + 1 if retries is not None else 1 if death.is_memory_fault else DEFAULT_MAX_KILLS_PER_ITEM
        return self._kills_by_item[item_id] if self._kills_by_item[item_id] >= max_kills else 0

    def _compute_backoff_s(self, death: WorkerDeath) -> float:
        if death.uptime_ns is not None and death.uptime_ns > _MIN_HEALTHY_UPTIME_NS:
            self._quick_deaths_by_process[death.process_index] = 0
            return 0.0
        self._quick_deaths_by_process[death.process_index] += 1
        doublings = self._quick_deaths_by_process[death.process_index] - _UNDELAYED_RESTARTS - 1
        return 0.0 if doublings < 0 else min(_MIN_BACKOFF_S * 2.0**doublings, _MAX_BACKOFF_S)

    def _describe_deaths(self, death: WorkerDeath) -> str:
        if not self.max_restarts:
            return f"{death.description}; `max_restarts=0` allows no restart"
        first_died_at_ns = self.deaths[0].died_at_ns
        lines = [
            f"  after {format_ns(listed.died_at_ns - first_died_at_ns)}: {listed.description}"
            for listed in self.deaths[-_MAX_DEATHS_LISTED:]
        ]
        earlier_count = len(self.deaths) - len(lines)
        return "\n".join(
            (
                f"{death.description}; workers died {len(self.deaths)} times, `max_restarts` is {self.max_restarts}:",
                *([f"  {earlier_count} earlier"] if earlier_count else []),
                *lines,
            )
        )


class ArenaFullDecision(Enum):
    """What follows when an item does not fit into shared memory."""

    SEEK = auto()
    """Process the items in flight again, with smaller windows or with more free memory."""
    SETTLE = auto()
    """Ask again a moment later: items may still be on their way, and the held bytes on the board may be old."""
    FAIL = auto()
    """The item does not fit even alone."""


class ArenaFullPolicy:
    """Halves the windows each time, and fails once they are 1 and nothing has been delivered in between."""

    def __init__(self, windows: SegmentWindows) -> None:
        """`windows` are changed in place."""
        self.windows = windows
        self._items_delivered_before = 0
        self._has_settled = False

    def decide(self, items_delivered: int) -> ArenaFullDecision:
        """Decide. `items_delivered`: the items of the whole run so far."""
        # Smaller windows need less memory, and items delivered since the last time have made room.
        if self.windows.halve() or items_delivered > self._items_delivered_before:
            self._items_delivered_before = items_delivered
            self._has_settled = False
            return ArenaFullDecision.SEEK
        if not self._has_settled:
            self._has_settled = True
            return ArenaFullDecision.SETTLE
        return ArenaFullDecision.FAIL
