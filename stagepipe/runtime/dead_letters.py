"""Dead letters: the items that failed and were skipped.

A DeadLetterWriter makes a letter in the process in which the item failed: in a worker, or inline. The DeadLetterStore
keeps a run's letters and enforces `max_skipped`, in the caller's process.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from stagepipe.core import Cursor, ImposedSkip, Key, RunError, SkipCount, split_by_segment
from stagepipe.plan import Plan, Shard
from stagepipe.runtime.execution import StageError, StageRunner
from stagepipe.runtime.protocol import (
    DeadLetterEvent,
    ForcedSkip,
    add_source_lines,
    format_key,
    read_only_hint,
    unpack_lineage,
    unpack_source_items,
)
from stagepipe.timing import Board, ProcessCounter, ProcessRegion, StageCounter

if TYPE_CHECKING:
    from stagepipe.report import DeadLetter


class DeadLetterWriter:
    """Makes the dead letters of one process and sends them to the supervisor's store."""

    def __init__(
        self, *, process_index: int, worker: int, first_stage_name: str, shard: Shard, any_order: bool
    ) -> None:
        """`first_stage_name` is the first stage of the process. `shard` and `any_order` come from the plan."""
        self._process_index = process_index
        self._worker = worker
        self._first_stage_name = first_stage_name
        self._shard = shard
        self._any_order = any_order

    def make_letter(
        self, stage: StageRunner, key: Key, error: StageError, lineage: bytes, generation: int
    ) -> DeadLetterEvent:
        """Return the letter of an item that failed at `stage`. `lineage` is b"" before the first order point."""
        return DeadLetterEvent(
            process=self._process_index,
            stage=stage.label,
            worker=self._worker,
            key=key,
            item=format_key(stage.global_key(key)),
            error=f"{error}{read_only_hint(error.cause, self._first_stage_name)}",
            trace=error.trace,
            attempts=error.attempts,
            generation=generation,
            epoch=stage.epoch,
            source_items=[self._shard.to_item_number(item) for item in self._get_source_items(key, lineage)],
        )

    def write(  # noqa: PLR0917 - a letter needs all of them
        self,
        send_event: Callable[[DeadLetterEvent], None],
        stage: StageRunner,
        key: Key,
        error: StageError,
        lineage: bytes,
        generation: int,
    ) -> None:
        """Make a letter, count it, and pass it to `send_event`."""
        stage.count_dead_letter()
        send_event(self.make_letter(stage, key, error, lineage, generation))

    def _get_source_items(self, key: Key, lineage: bytes) -> Sequence[int]:
        if not lineage:
            return [key[0]]
        if self._any_order:
            return unpack_source_items(lineage)
        ordered_lineage = unpack_lineage(lineage)
        return range(ordered_lineage.source_begin, ordered_lineage.source_end)


_MIN_ITEMS_FOR_SHARE: Final = 100
"""A `max_skipped` in percent is checked from this number of source items on: one of three proves no rate."""
_ARRIVAL_TIMEOUT_S: Final = 1.0
"""The longest wait for letters in transit. They usually take less than a millisecond."""
_POLL_INTERVAL_S: Final = 0.001


_LetterId = tuple[int, str, Key]
"""Epoch, stage and key of the failed item."""


class DeadLetterStore:
    """The dead letters of a run, and the check of `max_skipped` for the whole job. Thread-safe."""

    def __init__(
        self,
        plan: Plan,
        count_source_items: Callable[[], int],
        count_sent_letters: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        """`count_source_items` counts the items that the source sent, `count_sent_letters` letters by process."""
        self._max_skipped = plan.max_skipped
        self._count_source_items = count_source_items
        self._count_sent_letters = count_sent_letters
        self._source_sha256 = plan.source_sha256
        self._can_skip = any(stage.on_error == "skip" for process in plan.processes for stage in process.stages)
        self._segment_by_stage = {
            stage.row: process.output_segment for process in plan.processes for stage in process.stages
        }
        self._lock = threading.Lock()
        self._segment_count = len(plan.segments)
        self._letters: dict[_LetterId, DeadLetterEvent] = {}
        self._counted_keys: defaultdict[tuple[int, int], list[Key]] = defaultdict(list)
        """By epoch and segment: the sorted keys of the letters that were not counted before a resume. Kept sorted,
        because a run may have a million letters, and a training loop calls `count_until` at each step."""
        self._received_counts: Counter[int] = Counter()
        """By process. The letters of a process arrive in order."""
        self._untaken: dict[_LetterId, None] = {}
        """The letters that `take_until` has not returned yet, in the order of their arrival."""
        self._generation = 0
        self._epoch = -1
        self._cursors: Sequence[Cursor] = ()
        self._forced_skips: set[ImposedSkip] = set()
        self._resumed = SkipCount()
        """The count of the job up to the position from which this run continued."""
        self._letters_before_resume: set[_LetterId] = set()
        self._source_items_before_resume = 0
        self._counted_epoch: int | None = None
        self._source_items_of_earlier_epochs = 0
        """The job's count before `_counted_epoch`."""

    def resume_count(self, count: SkipCount) -> None:
        """Continue the count of a saved position. Drops this run's count so far, which came later or is part of it."""
        with self._lock:
            self._resumed = count
            self._letters_before_resume = set(self._letters)
            self._counted_keys.clear()
            self._source_items_before_resume = self._count_source_items()
            self._counted_epoch = None

    def count_until(self, epoch: int, cursor: Cursor | None) -> SkipCount | None:
        """Return the count of the job up to a position. Items read ahead do not count, because they run again.

        None if there is nothing to count: no `max_skipped`, and no letters. Waits for letters in transit.
        """
        self._wait_for_letters()
        cursors = split_by_segment(cursor, self._segment_count)
        with self._lock:
            letters = sum(len(keys) for (of_epoch, _), keys in self._counted_keys.items() if of_epoch != epoch)
            letters += sum(_count_until(self._counted_keys[epoch, i], cursor) for i, cursor in enumerate(cursors))
            if self._max_skipped is None and not (letters or self._resumed.items):
                return None
            is_current = epoch == self._counted_epoch
            source_items = self._source_items_of_earlier_epochs + cursors[0].item if is_current else self._sum_source()
        return SkipCount(self._resumed.items + letters, source_items)

    def _sum_source(self) -> int:
        """Return the number of items that the source sent in this job."""
        return self._resumed.source_items + max(self._count_source_items() - self._source_items_before_resume, 0)

    def add(self, letter: DeadLetterEvent) -> None:
        """Keep an arrived letter. Drops it if it is older than the last seek and its item is processed again."""
        with self._lock:
            self._received_counts[letter.process] += 1
            is_outdated = letter.generation < self._generation and letter.epoch == self._epoch
            if not (is_outdated and self._is_reprocessed(letter)):
                letter_id = (letter.epoch, letter.stage, letter.key)
                if letter_id not in self._letters or letter_id in self._letters_before_resume:
                    insort(self._get_counted_keys(letter), letter.key)
                self._letters[letter_id] = letter
                self._letters_before_resume.discard(letter_id)
                self._untaken[letter_id] = None

    def apply_seek(
        self, generation: int, epoch: int, cursors: Sequence[Cursor], forced_skips: Iterable[ForcedSkip]
    ) -> None:
        """Drop the letters of items that are processed again. `cursors` has one per segment. See also `Seek`."""
        with self._lock:
            if epoch != self._counted_epoch:
                self._counted_epoch = epoch
                self._source_items_of_earlier_epochs = max(self._sum_source() - cursors[0].item, 0)
            self._generation = generation
            self._epoch = epoch
            self._cursors = cursors
            self._forced_skips = {ImposedSkip(skip.stage, skip.key) for skip in forced_skips}
            self._letters = {
                letter_id: letter
                for letter_id, letter in self._letters.items()
                if letter.epoch != epoch or not self._is_reprocessed(letter)
            }
            self._letters_before_resume.intersection_update(self._letters)
            self._counted_keys.clear()
            for letter_id, letter in self._letters.items():
                if letter_id not in self._letters_before_resume:
                    self._get_counted_keys(letter).append(letter.key)
            for keys in self._counted_keys.values():
                keys.sort()

    def _get_counted_keys(self, letter: DeadLetterEvent) -> list[Key]:
        return self._counted_keys[letter.epoch, self._segment_by_stage[letter.stage]]

    def _is_reprocessed(self, letter: DeadLetterEvent) -> bool:
        is_forced = ImposedSkip(letter.stage, letter.key) in self._forced_skips
        return not is_forced and _is_after(letter.key, self._cursors[self._segment_by_stage[letter.stage]])

    def to_records(self) -> tuple[DeadLetter, ...]:
        """Return all letters as report records, in the order of the source."""
        with self._lock:
            letters = sorted(self._letters.values(), key=lambda letter: (letter.epoch, letter.source_items))
        return self._make_records(letters)

    def take_until(self, epoch: int, cursor: Cursor | None) -> tuple[DeadLetter, ...]:
        """Return the letters up to a position that no call has returned yet. Waits for letters in transit."""
        self._wait_for_letters()
        cursors = split_by_segment(cursor, self._segment_count)
        with self._lock:
            taken = [
                letter_id
                for letter_id in self._untaken
                if letter_id in self._letters
                and (
                    letter_id[0] != epoch or not _is_after(letter_id[2], cursors[self._segment_by_stage[letter_id[1]]])
                )
            ]
            for letter_id in taken:
                del self._untaken[letter_id]
            letters = [self._letters[letter_id] for letter_id in taken]
        return self._make_records(letters)

    def _make_records(self, letters: Iterable[DeadLetterEvent]) -> tuple[DeadLetter, ...]:
        from stagepipe.report import DeadLetter  # workers write letters, but need no report

        return tuple(
            DeadLetter(
                item=letter.item,
                stage=letter.stage,
                error=letter.error,
                attempts=letter.attempts,
                epoch=letter.epoch,
                source_items=tuple(letter.source_items),
                source_sha256=self._source_sha256,
                trace=add_source_lines(letter.trace),
            )
            for letter in letters
        )

    def make_limit_error(self, *, is_epoch_end: bool = False) -> RunError | None:
        """Return the error that ends the run if more items are skipped than `max_skipped` allows; else None.

        A limit in percent is checked from 100 source items on, and at the end of an epoch.
        """
        limit = self._max_skipped
        with self._lock:
            source_count = self._sum_source()
            skipped_count = self._resumed.items + len(self._letters) - len(self._letters_before_resume)
            last = next(reversed(self._letters.values()), None)
        if limit is None or (isinstance(limit, float) and source_count < _MIN_ITEMS_FOR_SHARE and not is_epoch_end):
            return None
        if not skipped_count or skipped_count <= (limit * source_count if isinstance(limit, float) else limit):
            return None
        allowed = f"{limit * 100:.4g}%" if isinstance(limit, float) else limit
        earlier = f", {self._resumed.items:,} of them before the resume" if self._resumed.items else ""
        message = (
            f"too many failed items: skipped {skipped_count:,} of {source_count:,} from the source{earlier}, "
            f"`max_skipped` is {allowed}"
        )
        if last is None:
            return RunError(f"{message}; raise `max_skipped` to continue")
        message += f"; the last one: stage {last.stage}, worker {last.worker}, item {last.item}: {last.error}"
        trace = add_source_lines(last.trace)
        return RunError(message, stage=last.stage, worker=last.worker, item=last.item, trace=trace)

    def enforce_limit(self) -> None:
        """Raise RunError if more is skipped than allowed. Call at the end of an epoch; waits for letters in transit."""
        self._wait_for_letters()
        error = self.make_limit_error(is_epoch_end=True)
        if error is not None:
            raise error

    def _wait_for_letters(self) -> None:
        """Wait for the letters that were sent. A worker sends a letter before the item's skip goes downstream."""
        if not self._can_skip:
            return
        sent_counts = self._count_sent_letters()
        deadline = monotonic() + _ARRIVAL_TIMEOUT_S
        while any(self._received_counts[process] < count for process, count in sent_counts.items()):
            if monotonic() >= deadline:  # the letters of a worker that was killed while sending them never arrive
                with self._lock:
                    self._received_counts |= Counter(sent_counts)
                return
            sleep(_POLL_INTERVAL_S)


def _is_after(key: Key, cursor: Cursor) -> bool:
    """Whether the item of a letter comes after a position."""
    if key[0] < cursor.item or key in cursor.emitted_keys:
        return False
    return cursor.last_key is None or key > cursor.last_key


def _count_until(keys: Sequence[Key], cursor: Cursor) -> int:
    """Count the sorted keys that do not come after a position. Looks only at keys from the position's item on."""
    start = bisect_left(keys, (cursor.item,))
    return start + sum(not _is_after(key, cursor) for key in keys[start:])


def make_letter_counters(
    board: Board, processes: Iterable[int]
) -> tuple[Callable[[], int], Callable[[], Mapping[int, int]]]:
    """Return `count_source_items` and `count_sent_letters` of a `DeadLetterStore`. Both read the board."""
    process_indices = tuple(processes)

    def count_source_items() -> int:
        return board.region(0)[ProcessCounter.ITEMS_SENT]

    def count_sent_letters() -> Mapping[int, int]:
        return {index: sum_letters(board.region(index)) for index in process_indices}

    def sum_letters(region: ProcessRegion) -> int:
        return sum(region.stage_region(index)[StageCounter.DEAD_LETTERS] for index in range(region.stage_count))

    return count_source_items, count_sent_letters
