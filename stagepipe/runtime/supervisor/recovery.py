"""The recovery of a run, as one pure state machine. `Recovery.on(event)` returns the actions that follow an event.

It holds no process, descriptor or clock: times come in the events. The `RecoveryCoordinator` turns occurrences into
events and executes the actions, under one lock. The protocol model in the tests drives this class too.

A death or a stall becomes the interrupt that stops the consumer (`Stopped`). The consumer answers with the cursor of
its last item (`Answered`), and the next seek names that cursor. No process knows which blocks a dead worker held, so
each death begins an era: from the next seek on, blocks come from a fresh range of every arena. A process that enters
the era reports its leases on older blocks (`StaleLeasesEvent`). When all have entered, the rest of the older ranges is
wiped. A block that is still leased is wiped after a later report without it.

Invariants. A violation loses items, delivers some twice, or reuses memory that another process still reads:

- A seek is published only while the consumer stands still, and at its cursor: `PublishSeek` follows only `Answered`.
- Every recovered death begins an era before the successor starts, so the successor allocates where no dead worker did.
- `Wipe` comes only after every process has entered the newest era, and spares all reported leases.
- A death is blamed on an item only if its worker was in the current epoch: items of two epochs have the same numbers.
- A death with several items in progress is blamed on none: from the next seek on, each of them is tried separately.
- A process counts from before its start until it has retired, so no new process enters an era that is being wiped.
- Every later seek of an epoch names all poison items of the epoch, and all ranges to process one by one.
- Reports of older generations are ignored. The first failure stays: permanently if its generation is 0, else until the
  next seek. A failure outweighs a seek, and a seek outweighs a full arena, because it makes room as well.
- Only an item that is delivered after the seek ends a stall and the time lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from stagepipe.core import Cursor, Key, RunError, StreamState, format_ns
from stagepipe.plan import StagePlan
from stagepipe.runtime.protocol import ArenaFullEvent, ForcedSkip, Seek, StaleLeasesEvent, UnbatchedRange
from stagepipe.transport import LeaseExtent

# ---------------------------------------------------------------------- events


@dataclass(frozen=True, kw_only=True)
class WorkerDeath:
    """A worker has died. `key` is the item that `stage` was processing in `epoch`, or ().

    `suspects` are the first and last numbers of items that were in progress together, such as a batch. `key` is then
    one.
    """

    stage: StagePlan
    worker: int
    process_index: int
    pid: int
    cause: str
    died_at_ns: int
    epoch: int = 0
    key: Key = ()
    item: str = ""
    suspects: Sequence[tuple[int, int]] = ()
    uptime_ns: int | None = None  # since it became ready; None if it never was
    is_memory_fault: bool = False  # SIGSEGV or SIGBUS: its item is not retried unless `retries` says so
    is_order_point: bool = False  # its stage has no `on_error`
    was_killed_externally: bool = False  # by another process or the out-of-memory killer: a retry may succeed
    trace: str = ""

    @property
    def description(self) -> str:
        """The death in a sentence: stage, worker, item, pid and cause."""
        item = f", item {self.item}" if self.item else ""
        if self.suspects:
            item += " or one in progress with it"
        starting = "" if self.uptime_ns is not None else " during start-up"
        return f"stage {self.stage.row}, worker {self.worker}{item} (pid {self.pid}) {self.cause}{starting}"


@dataclass(frozen=True)
class Stall:
    """At `at_ns` nothing had moved for `stalled_ns`, and no worker was busy. `description` is for people."""

    description: str
    stalled_ns: int
    at_ns: int


@dataclass(frozen=True)
class Failed:
    """An error. A stage raised it in `generation`; with generation 0, it ends the run for good."""

    error: RunError
    generation: int = 0


@dataclass(frozen=True)
class Ready:
    """A worker has built its stages."""

    process: int


@dataclass(frozen=True)
class Added:
    """A process is about to start, in the current era. It holds nothing of an older one."""

    process: int


@dataclass(frozen=True)
class Retired:
    """A process has ended without items. It holds no block, and no process holds one of its blocks."""

    process: int


@dataclass(frozen=True)
class Stopped:
    """The consumer has stopped because of the interrupt. `items_delivered` counts the whole run so far."""

    items_delivered: int


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The consumer stands still at `cursors`, one per segment. It will enter the seek that follows.

    For `rebuild_stateful`, `is_recovery` and `stream_state`, see `Seek`.
    """

    cursors: Sequence[Cursor]
    epoch: int
    rebuild_stateful: bool = True
    is_recovery: bool = False
    stream_state: StreamState | None = None


@dataclass(frozen=True)
class Delivered:
    """The consumer has delivered an item, the first one since a death or a stall."""

    at_ns: int


@dataclass(frozen=True)
class Ticked:
    """Time has passed."""

    at_ns: int


Event = (
    WorkerDeath
    | Stall
    | Failed
    | Ready
    | Added
    | Retired
    | ArenaFullEvent
    | Stopped
    | Answered
    | Delivered
    | StaleLeasesEvent
    | Ticked
)

# ---------------------------------------------------------------------- actions


@dataclass(frozen=True)
class Interrupt:
    """End the consumer's wait for an item."""


@dataclass(frozen=True)
class BeginEra:
    """Make room for the blocks of an era. From now on no process owns the memory of `dead_process`."""

    era: int
    dead_process: int


@dataclass(frozen=True)
class Start:
    """Start the successor of a dead worker, in the current era."""

    death: WorkerDeath
    era: int


@dataclass(frozen=True)
class PublishSeek:
    """Publish a seek to all ready workers. `cursors` is its cursor split by segment."""

    seek: Seek
    cursors: Sequence[Cursor]


@dataclass(frozen=True)
class SendSeek:
    """Send the current seek to a worker that has just become ready."""

    seek: Seek
    process: int


@dataclass(frozen=True)
class Wipe:
    """Free the memory of all eras before `era`, except the leased blocks."""

    era: int
    leases: list[LeaseExtent]


@dataclass(frozen=True)
class AskForCursor:
    """The consumer must answer with its cursor."""


@dataclass(frozen=True)
class Settle:
    """The consumer waits until the held bytes on the board are current, and continues."""


@dataclass(frozen=True)
class Fail:
    """The iterating caller gets the failure. `full_arena`: its item does not fit the arena even without others."""

    full_arena: ArenaFullEvent | None = None


Action = Interrupt | BeginEra | Start | PublishSeek | SendSeek | Wipe | AskForCursor | Settle | Fail

# ---------------------------------------------------------------------- the decision on a death

DEFAULT_MAX_KILLS_PER_ITEM = 3
"""The number of workers that an item kills before it is poison, unless `retries` is set. One kill may be chance."""
_MAX_START_FAILURES = 3
"""The number of deaths in a row while workers of a slot build their stages. Kills from outside do not count."""
_MIN_BACKOFF_S = 0.1
"""The delay before the third quick restart of a slot. It doubles with each further one, up to `_MAX_BACKOFF_S`."""
_UNDELAYED_RESTARTS = 2
_MAX_BACKOFF_S = 5.0
_MIN_HEALTHY_UPTIME_NS = 1_000_000_000
"""A worker that was ready for longer than this is restarted without delay."""
_MAX_DEATHS_LISTED = 5


class RestartPolicy:
    """Decides on each death of a run from all deaths so far, and remembers the items that later seeks must skip.

    An item that kills one worker after another is poison: `on_error` decides whether the run skips it or fails. After
    any other death the worker is restarted, up to `max_restarts` times in a run: at once the first time, then with
    growing delays.
    """

    def __init__(self, max_restarts: int, stateful_stage: str = "") -> None:
        """`stateful_stage` names a stage with `stateful: true`, which cannot restart within an epoch; "" if none."""
        self._max_restarts = max_restarts
        self._stateful_stage = stateful_stage
        self._deaths: list[WorkerDeath] = []
        self._kills_by_item: Counter[tuple[int, str, Key]] = Counter()
        self._start_failures_by_process: Counter[int] = Counter()
        self._quick_deaths_by_process: Counter[int] = Counter()
        self._poison_items: dict[tuple[int, str, Key], tuple[str, int]] = {}
        self._unbatched_ranges: set[tuple[int, str, int, int]] = set()

    def decide(self, death: WorkerDeath) -> float | str:
        """Return the delay of the restart in seconds, or the reason why the run fails."""
        self._deaths.append(death)
        process = death.process_index
        if self._stateful_stage:
            return (
                f"{death.description}; stage {self._stateful_stage} has `stateful=true` and cannot restart within an "
                "epoch, so a crash ends the run"
            )
        if death.uptime_ns is not None:
            self._start_failures_by_process[process] = 0
        elif not death.was_killed_externally:
            self._start_failures_by_process[process] += 1
            if self._start_failures_by_process[process] >= _MAX_START_FAILURES:
                return f"{death.description}, {_MAX_START_FAILURES} times in a row"
        kill_count = self._count_poison_kills(death)
        if kill_count and death.stage.on_error == "fail":
            suffix = "" if kill_count == 1 else f"; this item has killed {kill_count} workers"
            hint = f"; set `{death.stage.config_path}.on_error=skip` to send the item to the dead letters and continue"
            has_hint = not (death.is_memory_fault or death.is_order_point)
            return f"{death.description}{suffix}{hint if has_hint else ''}"
        if len(self._deaths) > self._max_restarts:
            return self._describe_deaths(death)
        if kill_count:
            subject = "its worker" if kill_count == 1 else f"it killed {kill_count} workers; the last one"
            self._poison_items[death.epoch, death.stage.name, death.key] = f"{subject} {death.cause}", kill_count
        # Process these items one by one, to find the item that kills.
        self._unbatched_ranges.update((death.epoch, death.stage.name, *suspects) for suspects in death.suspects)
        return self._compute_backoff_s(death)

    def _count_poison_kills(self, death: WorkerDeath) -> int:
        """Return the number of workers that the item has killed if it is poison; else 0."""
        if not death.key or death.suspects:
            return 0
        item_id = (death.epoch, death.stage.name, death.key)
        self._kills_by_item[item_id] += 1
        retries = death.stage.retries
        max_kills = retries + 1 if retries is not None else 1 if death.is_memory_fault else DEFAULT_MAX_KILLS_PER_ITEM
        return self._kills_by_item[item_id] if self._kills_by_item[item_id] >= max_kills else 0

    def _compute_backoff_s(self, death: WorkerDeath) -> float:
        quick_deaths = self._quick_deaths_by_process
        if death.uptime_ns is not None and death.uptime_ns > _MIN_HEALTHY_UPTIME_NS:
            quick_deaths[death.process_index] = 0
            return 0.0
        quick_deaths[death.process_index] += 1
        doublings = quick_deaths[death.process_index] - _UNDELAYED_RESTARTS - 1
        return 0.0 if doublings < 0 else min(_MIN_BACKOFF_S * 2.0**doublings, _MAX_BACKOFF_S)

    def _describe_deaths(self, death: WorkerDeath) -> str:
        if not self._max_restarts:
            return f"{death.description}; `max_restarts=0` allows no restart"
        listed = self._deaths[-_MAX_DEATHS_LISTED:]
        earlier_count = len(self._deaths) - len(listed)
        count = f"workers died {len(self._deaths)} times, `max_restarts` is {self._max_restarts}"
        return "\n".join(
            (
                f"{death.description}; {count}:",
                *([f"  {earlier_count} earlier"] if earlier_count else []),
                *(
                    f"  after {format_ns(each.died_at_ns - self._deaths[0].died_at_ns)}: {each.description}"
                    for each in listed
                ),
            )
        )

    def find_poison(self, epoch: int) -> list[ForcedSkip]:
        """Return the items that have killed too many workers in this epoch."""
        return [
            ForcedSkip(stage, key, error, kill_count)
            for (poison_epoch, stage, key), (error, kill_count) in sorted(self._poison_items.items())
            if poison_epoch == epoch
        ]

    def find_unbatched_ranges(self, epoch: int) -> list[UnbatchedRange]:
        """Return the items that are processed one by one instead of together."""
        return [
            UnbatchedRange(stage, first, last)
            for range_epoch, stage, first, last in sorted(self._unbatched_ranges)
            if range_epoch == epoch
        ]


# ---------------------------------------------------------------------- the machine

_MAX_STALL_RECOVERIES = 2
"""The number of times in a row that a stalled run restarts from the last delivered item before it fails."""


@dataclass
class WorkerRestart:
    """A death with a restart. `lost_ns` is the time from the death to the next delivered item; 0 before that."""

    death: WorkerDeath
    due_ns: int
    lost_ns: int = 0


@dataclass
class StallRestart:
    """A stall that a seek ended; no worker died. `lost_ns` is the time from its start to the next delivered item."""

    stall: Stall
    lost_ns: int = 0


class Recovery:
    """The current seek, era and interrupt of a run, its restarts, and the decisions on them."""

    def __init__(
        self,
        policy: RestartPolicy,
        processes: Iterable[int],
        windows: Iterable[int],
        small_item_windows: Iterable[int],
    ) -> None:
        """Begin without a generation. The windows of the segments are in items: see `Seek`.

        `processes` enter eras. `Added` and `Retired` change the set.
        """
        self.seek: Seek | None = None
        self.era = 0
        """The number of deaths that were followed by a restart."""
        self.interrupt: Failed | WorkerDeath | Stall | ArenaFullEvent | None = None
        """The reason why the consumer must stop waiting: an error, a needed seek, or a full arena."""
        self.restarts: list[WorkerRestart] = []
        self.stalls: list[StallRestart] = []
        self._policy = policy
        self._processes = set(processes)
        self._windows = list(windows)
        self._small_item_windows = list(small_item_windows)
        self._pending: list[WorkerRestart] = []
        self._entries: dict[int, tuple[int, list[LeaseExtent]]] = {}
        """The last report of each process: the era that it has entered, and its leases on older blocks."""
        self._stall_count = 0
        self._items_at_full_arena = 0
        self._has_settled = False

    @property
    def generation(self) -> int:
        """The number of the current seek; 0 before the first."""
        return 0 if self.seek is None else self.seek.generation

    @property
    def epoch(self) -> int:
        """The epoch of the current seek."""
        return 0 if self.seek is None else self.seek.epoch

    @property
    def awaits_delivery(self) -> bool:
        """Whether the first item of this generation must be reported, because the run has not recovered yet."""
        return self._stall_count > 0 or (bool(self.restarts) and not self.restarts[-1].lost_ns)

    @property
    def next_start_ns(self) -> int | None:
        """The time of the next restart; None if none is pending."""
        return min((restart.due_ns for restart in self._pending), default=None)

    def on(self, event: Event) -> list[Action]:  # noqa: C901, PLR0911, PLR0912 - one case for each event
        """Handle an event, and return the actions to execute, in order."""
        match event:
            case WorkerDeath():
                return self._on_death(event)
            case Stall():
                return self._on_stall(event)
            case Failed():
                return self._on_failure(event)
            case Ready():
                return [] if self.seek is None else [SendSeek(self.seek, event.process)]
            case Added():
                self._processes.add(event.process)
                self._entries[event.process] = self.era, []
                return []
            case Retired():
                self._processes.discard(event.process)
                return self._wipe_if_entered() if self.era else []
            case ArenaFullEvent():
                return self._on_full_arena(event)
            case Stopped():
                return self._on_stop(event)
            case Answered():
                return self._on_answer(event)
            case Delivered():
                return self._on_delivery(event)
            case StaleLeasesEvent():
                return self._on_entry(event)
            case Ticked():
                return self._on_tick(event)
            case _:
                assert_never(event)

    # ------------------------------------------------------------------ failures

    def _on_death(self, death: WorkerDeath) -> list[Action]:
        if self._has_failed_for_good:
            return []
        death = self._blame(death)
        decision = self._policy.decide(death)
        if isinstance(decision, str):
            error = RunError(decision, stage=death.stage.row, worker=death.worker, item=death.item, trace=death.trace)
            return self._on_failure(Failed(error))
        self.era += 1
        self._entries.pop(death.process_index, None)
        restart = WorkerRestart(death, death.died_at_ns + int(decision * 1e9))
        self.restarts.append(restart)
        self._pending.append(restart)
        return [BeginEra(self.era, death.process_index), *self._request_seek(death)]

    def _blame(self, death: WorkerDeath) -> WorkerDeath:
        """Clear the blame if the worker was still at an item of an earlier epoch: then no item is at fault."""
        if death.epoch == self.epoch:
            return death
        return replace(death, epoch=self.epoch, key=(), item="", suspects=())

    def _on_stall(self, stall: Stall) -> list[Action]:
        self._stall_count += 1
        if self._stall_count > _MAX_STALL_RECOVERIES:
            times = f"{_MAX_STALL_RECOVERIES} restarts from the last delivered item"
            return self._on_failure(Failed(RunError(f"{stall.description}; no progress after {times}")))
        self.stalls.append(StallRestart(stall))
        return self._request_seek(stall)

    def _request_seek(self, cause: WorkerDeath | Stall) -> list[Action]:
        if not isinstance(self.interrupt, Failed):
            self.interrupt = cause
        return [Interrupt()]

    def _on_failure(self, failure: Failed) -> list[Action]:
        if failure.generation not in {0, self.generation}:
            return []
        if not isinstance(self.interrupt, Failed):
            self.interrupt = failure
        elif not failure.generation:  # the first error is the cause; keep it over its consequences
            self.interrupt = replace(self.interrupt, generation=0)
        return [Interrupt()]

    @property
    def _has_failed_for_good(self) -> bool:
        return isinstance(self.interrupt, Failed) and not self.interrupt.generation

    def _on_full_arena(self, event: ArenaFullEvent) -> list[Action]:
        if event.generation != self.generation or isinstance(self.interrupt, Failed | WorkerDeath | Stall):
            return []
        self.interrupt = event
        return [Interrupt()]

    # ------------------------------------------------------------------ the consumer

    def _on_stop(self, stop: Stopped) -> list[Action]:
        if isinstance(self.interrupt, Failed):
            return [Fail()]
        if isinstance(self.interrupt, ArenaFullEvent):
            return [self._make_room(self.interrupt, stop.items_delivered)]
        return [] if self.interrupt is None else [AskForCursor()]

    def _make_room(self, event: ArenaFullEvent, items_delivered: int) -> Action:
        """Halve the windows. Once they are 1, fail unless an item was delivered since the last time."""
        # Smaller windows need less memory, and items delivered since the last time have made room.
        if self._halve_windows() or items_delivered > self._items_at_full_arena:
            self._items_at_full_arena = items_delivered
            self._has_settled = False
            return AskForCursor()
        if not self._has_settled:  # items may still be in transit, and the held bytes on the board may be old
            self._has_settled = True
            return Settle()
        return Fail(event)

    def _halve_windows(self) -> bool:
        if max(self._windows + self._small_item_windows) == 1:
            return False
        self._windows = [max(1, window // 2) for window in self._windows]
        self._small_item_windows = list(self._windows)
        return True

    def _on_answer(self, answer: Answered) -> list[Action]:
        if not self._has_failed_for_good:
            self.interrupt = None
        cursor_skips = {(stage, key) for cursor in answer.cursors for stage, key in cursor.skips}
        self.seek = Seek(
            generation=self.generation + 1,
            epoch=answer.epoch,
            cursor=answer.cursors[-1],
            windows=self._windows,
            small_item_windows=self._small_item_windows,
            era=self.era,
            forced_skips=[ForcedSkip(*skip) for skip in sorted(cursor_skips)] + self._policy.find_poison(answer.epoch),
            unbatched_ranges=self._policy.find_unbatched_ranges(answer.epoch),
            rebuild_stateful=answer.rebuild_stateful,
            is_recovery=answer.is_recovery,
            stream_state=answer.stream_state,
        )
        return [PublishSeek(self.seek, answer.cursors)]

    def _on_delivery(self, delivery: Delivered) -> list[Action]:
        if isinstance(self.interrupt, WorkerDeath | Stall):  # an item from before the seek
            return []
        self._stall_count = 0
        for restart in self.restarts:
            restart.lost_ns = restart.lost_ns or delivery.at_ns - restart.death.died_at_ns
        for stalled in self.stalls:
            stalled.lost_ns = stalled.lost_ns or delivery.at_ns - stalled.stall.at_ns + stalled.stall.stalled_ns
        return []

    # ------------------------------------------------------------------ continuing

    def _on_tick(self, tick: Ticked) -> list[Action]:
        due = [restart for restart in self._pending if restart.due_ns <= tick.at_ns]
        self._pending = [restart for restart in self._pending if restart.due_ns > tick.at_ns]
        return [] if self._has_failed_for_good else [Start(restart.death, self.era) for restart in due]

    def _on_entry(self, entry: StaleLeasesEvent) -> list[Action]:
        self._entries[entry.process] = entry.era, entry.leases
        return self._wipe_if_entered()

    def _wipe_if_entered(self) -> list[Action]:
        entries = [self._entries.get(process, (0, [])) for process in sorted(self._processes)]
        if any(era < self.era for era, _ in entries):
            return []
        return [Wipe(self.era, [lease for _, leases in entries for lease in leases])]
