"""One stage inside a process: built once, called once an item, timed and seeded. In workers and inline."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from types import GeneratorType
from typing import Any

import numpy as np

from stagepipe.core import ArenaFullError, Context, Key, current, seed_of
from stagepipe.core.targets import build, require_callable
from stagepipe.plan import WHOLE, Shard, StagePlan
from stagepipe.runtime.failures import text_of, trace_of
from stagepipe.runtime.seeding import seed_globals, watch_for_torch
from stagepipe.runtime.yields import yields_of
from stagepipe.stages import FieldAdapter, ignores_arrays, own_generators
from stagepipe.timing import STAGE_WORDS, Recorder, StageRegion, StageWord


class StageError(Exception):
    """What a stage raised, with the stage and the item; the cause is the original."""

    def __init__(self, stage: str, key: Key, cause: BaseException, attempts: int = 1) -> None:
        """`cause` keeps its traceback; `attempts` is how often the item was tried."""
        self.stage, self.key, self.cause, self.attempts = stage, key, cause, attempts
        super().__init__(f"{type(cause).__name__}: {text_of(cause)}")

    @property
    def trace(self) -> str:
        """The original traceback without the frames of this package at its top."""
        return trace_of(self.cause)


def key_text(key: Key) -> str:
    """`17`, or `17.3` for a part: an item in messages.

    >>> key_text((17, 3))
    '17.3'
    """
    return ".".join(map(str, key))


def item_text(shard: Shard, key: Key) -> str:
    """An item in messages, by its number in the source's order; nothing for no item."""
    return key_text((shard.number(key[0]), *key[1:])) if key else ""


class Stage:
    """A stage that is built. `function` is what is called with an item (or with a list of them)."""

    def __init__(  # noqa: PLR0917 - what the process lends it
        self,
        plan: StagePlan,
        worker: int,
        seed: int,
        config_dir: Path | None,
        region: StageRegion,
        shard: Shard = WHOLE,
    ) -> None:
        """Build the target; what that raises is the caller's to report."""
        self.plan, self.name, self._seed, self._region = plan, plan.name, seed, region
        self._shard, self._alone = shard, shard == WHOLE
        self._config_dir = config_dir
        self.renew()
        self._context = Context(plan.name, worker, 0, (0,), seed)
        self.epoch = 0
        self._run = Recorder(region.run, 1)
        # A successor counts on from where the worker before it was.
        self._items, self._skipped = region[StageWord.ITEMS], region[StageWord.SKIPPED]
        self._errors, self._retries = region[StageWord.ERRORS], region[StageWord.RETRIES]
        self._busy_ns, self._timed_ns = region[StageWord.BUSY_NS], 0
        self._new = True
        self.queue_ns: Callable[[], int] = int

    def renew(self) -> None:
        """Build the target, the first time, or anew for a stage that must not remember what it has seen."""
        plan = self.plan
        watch_for_torch()
        target = build(plan.target.uses, plan.target.arguments, self._config_dir)
        self.yields = yields_of(target)
        self.reseed_own = own_generators(target) if plan.reseed else None
        if plan.field is not None or plan.as_ is not None or ignores_arrays(target) is not None:
            batched = plan.batch is not None
            target = FieldAdapter(target, plan.field, plan.as_, plan.target.label, batched=batched)
        self.target = target
        # What a stage raises is its error, `sys.exit()` too. But a Ctrl-C, which no worker hears, is the caller's.
        hears = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        self._passing = (ArenaFullError, KeyboardInterrupt) if hears else (ArenaFullError,)

    def enter(self, epoch: int) -> None:
        """An epoch (or a stretch of it) begins."""
        self.epoch = self._context.epoch = epoch

    @property
    def function(self) -> Callable[..., Any]:
        """What is called."""
        return require_callable(self.target, self.plan.target.uses)

    @property
    def busy_ns(self) -> int:
        """How long it has run."""
        return self._busy_ns

    def named(self, key: Key) -> Key:
        """What a rank's item is called, and seeded by: no two ranks draw the same for their n-th items."""
        return key if self._alone else (self._shard.number(key[0]), *key[1:])

    def at(self, key: Key) -> None:
        """Say where we are."""
        context = self._context
        context.item = self.named(key)
        context.__dict__.pop("rng", None)
        current.context = context

    def seed(self, key: Key) -> None:
        """Say where we are, and seed everything from (seed, epoch, stage, item)."""
        self.at(key)
        self._seed_by(self.named(key))

    def seed_epoch(self) -> None:
        """Seed everything for what a source draws once an epoch, an order or a stream: the same in every rank."""
        self.at((0,))
        self._seed_by((0,))

    def _seed_by(self, key: Key) -> None:
        if self.plan.reseed:
            seed = seed_of(self._seed, self.epoch, self.name, key)
            seed_globals(seed)
            if self.reseed_own is not None:
                self.reseed_own(seed & 0xFFFFFFFF)

    def call(self, key: Key, box: list[Any]) -> Any:
        """Run it on the item in `box`, which is left empty, so that the input is let go when the function returns."""
        try:
            self.seed(key)
            begin = perf_counter_ns()
            result = self.target(box.pop())
        except self._passing:
            raise
        except BaseException as error:
            raise self.failed(key, error) from error
        if type(result) is not GeneratorType:
            self._count(key, perf_counter_ns() - begin)
        return result

    def call_many(self, keys: list[Key], values: list[Any]) -> list[Any]:
        """Run it on a list of items; as many results must come back."""
        try:
            self.seed(keys[0])
            begin = perf_counter_ns()
            results = self.target(values)
            results = list(results)
            if len(results) != len(keys):
                message = (
                    f"a stage with `batch` was called with {len(keys)} items and returned {len(results)}; it must "
                    "return one result (or stagepipe.SKIP) for each"
                )
                raise ValueError(message)  # noqa: TRY301 - it is reported as the stage's own
        except self._passing:
            raise
        except BaseException as error:
            raise self.failed(keys[0], error) from error
        spent = perf_counter_ns() - begin
        for key in keys:
            self._count(key, spent // len(keys))
        return results

    def parts(self, key: Key, generator: Iterator[Any]) -> Iterator[list[Any]]:
        """What a generator gives, each in a box of its own. Seeded anew before each part, by the part's key."""
        rng = current.context.__dict__.get("rng") if current.context is not None else None
        number = spent = 0
        while True:
            try:
                if number:
                    self.seed((*key, number))
                    if rng is not None:
                        self._context.__dict__["rng"] = rng
                begin = perf_counter_ns()
                box = [next(generator)]
            except StopIteration:
                self._count(key, spent + perf_counter_ns() - begin)
                return
            except self._passing:
                raise
            except BaseException as error:
                raise self.failed((*key, number), error) from error
            spent += perf_counter_ns() - begin
            rng = self._context.__dict__.get("rng", rng)
            yield box
            number += 1

    def timed(self, key: Key, function: Callable[[], Any]) -> Any:
        """Run something that is not a call of the stage's function: an order point's work, a source's next item.

        Its time is busy time. Whether it was an item's, the caller says with `count` behind it: a flush and the look
        that finds a source's end are none.
        """
        begin = perf_counter_ns()
        try:
            return function()
        except (*self._passing, StopIteration):
            raise
        except BaseException as error:
            raise self.failed(key, error) from error
        finally:
            self._timed_ns = perf_counter_ns() - begin
            self._busy_ns += self._timed_ns

    def count(self, key: Key) -> None:
        """What was just timed was an item."""
        self._note(key, self._timed_ns)

    def _count(self, key: Key, spent_ns: int) -> None:
        self._busy_ns += spent_ns
        self._note(key, spent_ns)

    def _note(self, key: Key, spent_ns: int) -> None:
        self._items += 1
        self._run.add((spent_ns,))
        # A worker's first item pays for what is loaded late, so it says nothing about the item.
        if self._new:
            self._new = False
        elif spent_ns > self._slow_floor:
            self._region.note_slow(self.named(key)[0], spent_ns, self.queue_ns())
            self._slow_floor = int(self._region.slow[:, 0].min())

    _slow_floor = 0

    def failed(self, key: Key, cause: BaseException) -> StageError:
        """An item failed here."""
        self._errors += 1
        return StageError(self.name, self.named(key), cause)

    def posted(self) -> None:
        """A dead letter of it is on its way. On the board at once: at an epoch's end all are waited for."""
        self._region[StageWord.LETTERS] += 1

    def skipped(self) -> None:
        """It dropped an item, or one was skipped because it failed."""
        self._skipped += 1

    def retried(self) -> None:
        """An item that had failed is tried again."""
        self._retries += 1

    def flush(self) -> None:
        """Bring what was counted to the board."""
        self._run.flush()
        region = self._region
        region[StageWord.ITEMS], region[StageWord.SKIPPED] = self._items, self._skipped
        region[StageWord.ERRORS], region[StageWord.RETRIES] = self._errors, self._retries
        region[StageWord.BUSY_NS] = self._busy_ns

    def random(self, item: int, last: Key | None) -> random.Random:
        """A generator for an order point's own draws, of the group that begins behind leaf `last` of item `item`."""
        key = (self.named((item,))[0], *(last or ()))
        return random.Random(seed_of(self._seed, self.epoch, self.name, key))


def private_region() -> StageRegion:
    """A stage's words that nobody else reads: for `--inline`."""
    words = np.zeros(STAGE_WORDS, np.uint64)
    return StageRegion(words, memoryview(words.data).cast("B").cast("Q"), 0)
