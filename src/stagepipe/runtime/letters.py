"""Dead letters: the items that failed and were skipped. Written where they fail, kept in the supervisor's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic, sleep
from typing import Any, Final

from stagepipe.core import Cursor, Key, RunError, Skip
from stagepipe.plan import Plan, Shard
from stagepipe.runtime.failures import read_only_mend
from stagepipe.runtime.groups import items_of
from stagepipe.runtime.messages import DeadLetter
from stagepipe.runtime.resources import WorkerPlace
from stagepipe.runtime.said import unpack_said
from stagepipe.runtime.stage import Stage, StageError, key_text
from stagepipe.timing import Board, StageWord, Word

_LEAST_ITEMS: Final = 100
"""Of fewer, a share says nothing before the end: one of three is no third."""
_ARRIVAL_S: Final = 1.0
"""How long to wait, at an epoch's end, for letters that are on their way. They take less than a millisecond."""
_LOOK_S: Final = 0.001


class Postbox:
    """Writes the dead letters of one process."""

    def __init__(self, process: int, worker: int, head: str, plan: tuple[Shard, bool]) -> None:
        """`head` is the process's first stage; `plan` its shard, and whether it is `order: any`."""
        self._process, self._worker, self._head = process, worker, head
        self._shard, self._any = plan

    def letter(self, stage: Stage, key: Key, error: StageError, meta: bytes, generation: int) -> DeadLetter:
        """The letter of an item that failed at `stage`."""
        return DeadLetter(
            self._process,
            stage.name,
            self._worker,
            list(key),
            key_text(stage.named(key)),
            f"{error}{read_only_mend(error.cause, self._head)}",
            error.trace,
            error.attempts,
            generation,
            stage.epoch,
            [self._shard.number(item) for item in self._made_of(key, meta)],
        )

    def send(  # noqa: PLR0917 - all of it goes into the letter
        self,
        send: Callable[[DeadLetter], None],
        stage: Stage,
        key: Key,
        error: StageError,
        meta: bytes,
        generation: int,
    ) -> None:
        """Write it and send it."""
        stage.posted()
        send(self.letter(stage, key, error, meta, generation))

    def _made_of(self, key: Key, meta: bytes) -> Sequence[int]:
        if not meta:
            return [key[0]]
        if self._any:
            return items_of(meta)
        said = unpack_said(meta)
        return range(said.begin, said.end)


class Letters:
    """The dead letters of a run. Thread-safe."""

    def __init__(self, plan: Plan, items_in: Callable[[], int], sent: Callable[[], int] = int) -> None:
        """`items_in` tells how many items the source has sent; `sent`, how many letters are written."""
        self._limit, self._items_in, self._sent = plan.max_skipped, items_in, sent
        self._source = plan.source_sha256
        self._stretch_of = {stage.name: process.feeds for process in plan.processes for stage in process.stages}
        self._lock = threading.Lock()
        self._letters: dict[tuple[int, str, Key], DeadLetter] = {}
        self._heard = self._generation = 0
        self._epoch = -1
        self._cursors: Sequence[Cursor] = ()
        self._imposed: set[Skip] = set()

    def take(self, letter: DeadLetter) -> None:
        """A letter has come. One from before the last seek is void if its item is made again."""
        with self._lock:
            self._heard += 1
            late = letter.generation < self._generation and letter.epoch == self._epoch
            if not (late and self._comes_again(letter)):
                self._letters[letter.epoch, letter.stage, tuple(letter.key)] = letter

    def seek(self, generation: int, epoch: int, cursors: Sequence[Cursor], imposed: Iterable[Iterable[Any]]) -> None:
        """Forget the letters of items that are made again. `cursors` are by stretch; for `imposed` see `Seek`."""
        with self._lock:
            self._generation, self._epoch, self._cursors = generation, epoch, cursors
            self._imposed = {Skip(stage, tuple(key)) for stage, key, *_ in imposed}
            self._letters = {
                name: letter
                for name, letter in self._letters.items()
                if letter.epoch != epoch or not self._comes_again(letter)
            }

    def _comes_again(self, letter: DeadLetter) -> bool:
        key = tuple(letter.key)
        cursor = self._cursors[self._stretch_of[letter.stage]]
        if key[0] < cursor.item or key in cursor.out or Skip(letter.stage, key) in self._imposed:
            return False
        return cursor.last is None or key > cursor.last

    def all(self) -> tuple[dict[str, Any], ...]:
        """All letters, as the report has them, in the order of the source."""
        with self._lock:
            return tuple(
                {
                    "item": letter.item,
                    "stage": letter.stage,
                    "error": letter.error,
                    "attempts": letter.attempts,
                    "epoch": letter.epoch,
                    "source_items": letter.source_items,
                    "source": self._source,
                    "trace": letter.trace,
                }
                for letter in sorted(self._letters.values(), key=lambda each: (each.epoch, each.source_items))
            )

    def beyond(self, *, at_end: bool = False) -> RunError | None:
        """Why the run fails, if more is skipped than `max_skipped` allows. A share is judged from 100 items on."""
        limit, items_in = self._limit, self._items_in()
        with self._lock:
            skipped, last = len(self._letters), next(reversed(self._letters.values()), None)
        if limit is None or last is None or (isinstance(limit, float) and items_in < _LEAST_ITEMS and not at_end):
            return None
        if skipped <= (limit * items_in if isinstance(limit, float) else limit):
            return None
        allowed = f"{limit * 100:.4g}%" if isinstance(limit, float) else limit
        message = (
            f"items skipped for errors: {skipped:,}, of {items_in:,} from the source, and `max_skipped` is {allowed}; "
            f"the last is stage {last.stage}, worker {last.worker}, item {last.item}: {last.error}"
        )
        return RunError(message, stage=last.stage, worker=last.worker, item=last.item, trace=last.trace)

    def judge(self) -> None:
        """At an epoch's end: RunError if more was skipped than is allowed. Letters on their way are waited for."""
        deadline = monotonic() + _ARRIVAL_S
        while self._heard < self._sent() and monotonic() < deadline:
            sleep(_LOOK_S)
        self._heard = self._sent()  # what was on its way when its worker was killed never comes
        error = self.beyond(at_end=True)
        if error is not None:
            raise error


def counters(board: Board, places: Sequence[WorkerPlace]) -> tuple[Callable[[], int], Callable[[], int]]:
    """What `Letters` asks of a run with workers: how many items the source has sent, and how many letters there are."""

    def letters() -> int:
        regions = [board.region(place.number) for place in places]
        return sum(region.stage(at)[StageWord.LETTERS] for region in regions for at in range(region.stages))

    return lambda: board.region(0)[Word.SENT], letters
