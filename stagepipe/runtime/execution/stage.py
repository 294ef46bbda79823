"""One stage in a process: built once, then seeded, called and timed for each item.

With `when`, items that do not match go around the stage: they keep their keys, and their arrays are not copied.
"""

from __future__ import annotations

import copy
import operator
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from stagepipe.core import (
    ASYNC_GENERATOR_MESSAGE,
    MISSING,
    ArenaFullError,
    Context,
    Key,
    TargetError,
    UserCode,
    build_target,
    derive_seed,
    end_forked_child,
    find_field,
    import_target,
    is_async,
    is_async_generator,
    make_missing_error,
    require_callable,
    stage_locals,
    this_process,
)
from stagepipe.plan import UNSHARDED, Shard, StagePlan
from stagepipe.runtime.execution.errors import (
    AsyncResultError,
    CallAbandonedError,
    NoneConditionError,
    NoneResultError,
    StageError,
    describe_failing_input,
    name_item,
)
from stagepipe.runtime.execution.fields import FieldAdapter, find_array_ignoring_transform
from stagepipe.runtime.execution.lazy_seeding import SeedParts
from stagepipe.runtime.execution.seeding import (
    Seeder,
    find_own_generators,
    install_torch_import_hook,
    make_global_seeder,
    seeded_item,
)
from stagepipe.runtime.protocol import format_key, infer_cardinality
from stagepipe.sinks import PartSink
from stagepipe.spec import SOURCE_NAME, Condition, FieldTests, Target
from stagepipe.stages import OrderPointStage, declares_order_point, require_order_point
from stagepipe.timing import (
    STAGE_WORDS,
    ProcessRegion,
    StageCounter,
    StageRegion,
    TraceBuffer,
    TraceKind,
    region_word_count,
)

if TYPE_CHECKING:
    from stagepipe.runtime.execution.event_loop import StageLoop

Predicate = Callable[[Any], object]
"""Decides whether a stage runs on an item."""

_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


class Route(Enum):
    """The path of an item: into the stage, around it, or nowhere because its condition failed."""

    CALL = "call"
    AROUND = "around"
    FAILED = "failed"


def build_predicate(condition: Condition, config_dir: Path | None) -> Predicate:
    """Return the function that evaluates a condition. Raises TargetError for a predicate that is not callable.

    >>> is_wide = build_predicate({"width": {"ge": 64}}, None)
    >>> is_wide({"width": 100}), is_wide({"width": 5})
    (True, False)
    """
    if isinstance(condition, Target):
        return require_callable(build_target(condition.uses, condition.arguments, config_dir), condition.uses)
    return FieldPredicate(condition)


class FieldPredicate:
    """Tests whether all conditions on an item's fields hold.

    >>> FieldPredicate({"kind": {"in": ["image", "photo"]}, "mask": {"exists": False}})({"kind": "photo"})
    True

    Raises KeyError for a field that the item lacks, unless the field's tests have `exists`; TypeError for a value that
    cannot be compared.
    """

    def __init__(self, tests_by_field: FieldTests) -> None:
        self._tests = [
            (path, tests.get("exists"), [(name, operand) for name, operand in tests.items() if name != "exists"])
            for path, tests in tests_by_field.items()
        ]

    def __call__(self, item: Any) -> bool:
        """Return whether the item matches."""
        for path, exists, tests in self._tests:
            value = find_field(item, path)
            if value is MISSING:
                if exists is None:
                    raise _make_missing_error(item, path)
                if exists:
                    return False
            elif exists is False or not all(_holds(path, value, name, operand) for name, operand in tests):
                return False
        return True


def _make_missing_error(item: Any, path: str) -> Exception:
    error = make_missing_error(item, path, "when")
    hint = f"; where some items lack it, add the test `exists` to `when`: {{{path}: {{exists: true, ...}}}}"
    return type(error)(f"`when`: {error.args[0]}{hint if isinstance(error, KeyError) else ''}")


def _holds(path: str, value: Any, name: str, operand: Any) -> bool:
    if name == "in":
        return any(_holds(path, value, "eq", choice) for choice in operand)
    if getattr(value, "ndim", 0):
        raise _make_comparison_error(path, value, name, operand)
    try:
        return bool(_COMPARISONS[name](value, operand))
    except (TypeError, ValueError):
        raise _make_comparison_error(path, value, name, operand) from None


def _make_comparison_error(path: str, value: Any, name: str, operand: Any) -> TypeError:
    shape = f" of shape {tuple(value.shape)}" if getattr(value, "ndim", 0) else ""
    return TypeError(
        f"`when`: the field `{path}` is of type {type(value).__name__}{shape}, and `{name}` cannot compare it with "
        f"{operand!r}; compare a number or a string, or name a predicate: a function that takes the item"
    )


_GROUP_END: Final = -1
"""The end of the key that seeds the flush of an order point's group. No item's key has it."""

_MIN_NAMED_NS: Final = 1_000_000
"""If the last slow item took less, names are not noted, because noting one takes about 1 us."""
_MIN_MEAN_NAMED_NS: Final = 20_000
"""Names are also not noted if items take less on average: a slow item then mostly just lost the CPU."""
_ITEMS_PER_FLUSH: Final = 1024
"""The number of items after which run times go to the board. NumPy adds this many in the time of a few."""

_ASYNC_TYPES: Final = frozenset({CoroutineType, AsyncGeneratorType})
_ONE_BY_ONE_TYPES: Final = frozenset({type(None), GeneratorType, *_ASYNC_TYPES})
"""Result types for which several items are called again one by one: mistakes, and generators of parts."""

_COUNTS: Final = (
    "_skipped_count", "_passed_by_count", "_error_count", "_retry_count", "_repeated_ns", "_busy_ns"
)  # fmt: skip
"""The counts of a stage, except its items, which are its run times."""

StageCall = Callable[[Sequence[Key], list[Any]], list[Any]]
"""Runs a stage: `StageRunner.invoke`, possibly with retries, a cache or a condition around it."""

ItemCall = Callable[[Key, list[Any]], Any]
"""Runs a stage on the item in a box and returns the result: `StageRunner.call`, or a `StageCall` for one item."""

_OWN_PACKAGE: Final = __name__.partition(".")[0]
_STAGE = int(TraceKind.STAGE)


class StageRunner:
    """A built stage. `target` is called with an item, or with a list of items if the stage has a `batch`."""

    def __init__(  # noqa: PLR0917 - all of it comes from the process
        self,
        plan: StagePlan,
        worker: int,
        seed: int,
        config_dir: Path | None,
        region: StageRegion,
        shard: Shard = UNSHARDED,
        trace: TraceBuffer | None = None,
    ) -> None:
        """Build the target. The caller reports its exceptions."""
        self.plan = plan
        self.trace = trace
        """The trace of the process in a traced run. The chain traces calls of the target."""
        self.name = plan.name
        """The name on which its seeds depend."""
        self.label = plan.row
        """The name for the user, in messages."""
        self._takes_lists = plan.batch is not None
        self.seed = seed
        self._region = region
        self._shard = shard
        self._is_unsharded = shard == UNSHARDED
        self._config_dir = config_dir
        self._pid = this_process.pid
        """The process that runs the stage. A child that user code forks ends when it leaves that code."""
        self.event_loop: StageLoop | None = None
        """The loop of its tasks, if its function is `async def`."""
        self._async_target: Any = None
        self.build_target()
        self._context = Context(plan.name, worker, 0, (0,), seed)
        self.epoch = 0
        self.refuses_none = not plan.allow_none
        """Whether None as a result ends the run."""
        self.skips_failures = plan.on_error == "skip"
        """Whether failed items are skipped. Otherwise they end the run."""
        self.copies_matching = False
        """Whether an item that matches `when` is copied for the call, because the stage may change it."""
        self._durations_ns: list[int] = []
        """The run times of items that are not yet on the board, nor in `_busy_ns`."""
        # A successor continues the counts of the previous worker.
        self._item_count = region[StageCounter.ITEMS]
        self._skipped_count = region[StageCounter.SKIPPED]
        self._passed_by_count = region[StageCounter.PASSED_BY]
        self._error_count = region[StageCounter.FAILED_ATTEMPTS]
        self._retry_count = region[StageCounter.RETRIES]
        self._repeated_ns = region[StageCounter.REPEATED_NS]
        self._busy_ns = region[StageCounter.BUSY_NS]
        self._thread_count = 1
        self.last_timed_ns = 0
        """The time of the last work that was not a call with one item. `count_items` counts that work's items."""
        self._slow_threshold_ns = -1
        """An item that takes longer is among the slowest so far. -1 before the first item."""
        self._names_items = False
        """Whether to note each item's name before its call, which may not keep the item. Not done for fast stages."""
        self._item_name = ""
        self.get_queue_ns: Callable[[], int] = int
        """Returns the time that the current item waited before this process."""
        self.on_survivable_failure: Callable[[StageError], None] | None = None
        """Called when a call fails and others follow: a retry, or with `on_error: skip` the next item."""

    def build_target(self) -> None:
        """Build the target, or rebuild the target of a stateful stage, which must forget its items."""
        plan = self.plan
        install_torch_import_hook()
        with UserCode(self._describe()):
            target = self._build_target()
        self.cardinality = infer_cardinality(target)
        own_generators = find_own_generators(target) if plan.reseed else None
        self._has_own_generators = own_generators is not None
        self._seed_generators = _make_seeder(own_generators) if plan.reseed else None
        self._predicate = None if plan.when is None else build_predicate(plan.when, self._config_dir)
        if isinstance(target, PartSink):  # it decides for each item of a part
            target.warm_up()
            target.matches = None if self._predicate is None else _refuse_none(self._predicate, self.label)
            self._predicate = None
        self._runs_users_predicate = isinstance(plan.when, Target)
        is_seeded = plan.reseed and self._runs_users_predicate
        self._seed_predicate = _make_seeder(find_own_generators(self._predicate)) if is_seeded else None
        own_target, target = target, self._wrap_async(target)
        uses_fields = any(setting is not None for setting in (plan.field, plan.as_, plan.into))
        if uses_fields or find_array_ignoring_transform(own_target) is not None:
            batched = plan.batch is not None
            target = FieldAdapter(
                target,
                plan.field,
                plan.as_,
                plan.target.label,
                into=plan.into,
                batched=batched,
                allow_none=plan.allow_none,
            )
        self.seeds_grouping = plan.is_order_point and type(target).__module__.partition(".")[0] != _OWN_PACKAGE
        """Whether this is an order point that may draw. Built-in ones do not."""
        self.target = target
        if plan.index:  # not the source, which may be anything readable
            _ = self.order_point if plan.is_order_point else self.function  # raises if the target has the wrong kind
        # Any exception of a stage is its error, even SystemExit. Ctrl-C, which workers ignore, belongs to the caller.
        handles_sigint = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        errors = (ArenaFullError, CallAbandonedError)
        self._propagated_errors = (*errors, KeyboardInterrupt) if handles_sigint else errors

    def _build_target(self) -> Any:
        """Build the target. An `async def` stage builds it on the thread of its loop."""
        plan = self.plan
        build = partial(build_target, plan.target.uses, plan.target.arguments, self._config_dir)
        if not plan.is_async:
            return build()
        from stagepipe.runtime.execution.event_loop import StageLoop  # it imports asyncio

        if isinstance(plan.target.uses, str):
            import_target(plan.target.uses, self._config_dir)  # user modules must be imported on the main thread
        self.event_loop = StageLoop(self.label, plan.timeout_ns)
        try:
            return self.event_loop.build(build)
        except BaseException:
            self.close()
            raise

    def _wrap_async(self, target: Any) -> Any:
        """Return a function that waits for the results of `target` if they are awaitable, else `target`."""
        if is_async_generator(target):
            raise TargetError(ASYNC_GENERATOR_MESSAGE.format(self.plan.target.label))
        if not is_async(target):
            return target
        if self.event_loop is None:
            raise TargetError(
                f"`{self.plan.target.label}` returns an async function, but its source code does not show "
                "that; in `uses`, name an `async def`, or a class whose `__call__` is one"
            )
        self._async_target = target
        return self.event_loop.wrap(target)

    def close(self) -> None:
        """End the stage's event loop, if it has one, after running the target's `close` on it."""
        if self.event_loop is not None:
            self.event_loop.close(self._async_target)

    def start_epoch(self, epoch: int) -> None:
        """Start an epoch, or a part of it after a seek."""
        self.epoch = self._context.epoch = epoch

    @property
    def function(self) -> Callable[..., Any]:
        """The target, checked to be callable."""
        if declares_order_point(self.target):
            message = (
                f"`{self.plan.target.label}` returns an order point, but its source code does not show that; "
                "set `order_point = True` in the class, and name the class itself in `uses`"
            )
            raise TargetError(message)
        return require_callable(self.target, self.plan.target.uses)

    @property
    def groups_plainly(self) -> bool:
        """Whether adding an item to this order point needs neither a seed nor a trace record."""
        return not self.seeds_grouping and self.trace is None

    @property
    def order_point(self) -> OrderPointStage:
        """The target, checked to have the methods of an order point."""
        return require_order_point(self.target)

    def global_key(self, key: Key) -> Key:
        """Return the key in the source's order, for messages and seeds. It differs between ranks."""
        return key if self._is_unsharded else (self._shard.to_item_number(key[0]), *key[1:])

    def seed_item(self, key: Key) -> None:
        """Set the context, and seed all generators from (seed, epoch, stage, item)."""
        self._seed_global_key(key if self._is_unsharded else self.global_key(key))

    def seed_source_item(self, number: int) -> None:
        """Seed item `number` among all ranks' items: a stream's draws do not depend on rank, limit or resume."""
        self._seed_global_key((number,))

    def seed_epoch(self) -> None:
        """Seed the draws of a source that it makes once an epoch (an order, a stream): the same on every rank."""
        self._seed_global_key(())

    def seed_group(self, item: int, last_key: Key | None) -> random.Random:
        """Seed the end of an order point's group that starts after leaf `last_key` of `item`. Returns its generator."""
        key = (self.global_key((item,))[0], *(last_key or ()))
        if self.seeds_grouping:
            self._seed_global_key((*key, _GROUP_END))
        return random.Random(derive_seed(self.seed, self.epoch, self.name, key))

    def _seed_global_key(self, key: Key) -> None:
        context = self._context
        context.item = key
        context.own_rng = None
        stage_locals.context = context
        if self._seed_generators is not None:
            seeded_item.parts = parts = (self.seed, self.epoch, self.name, key)
            if seeded_item.must_seed or self._has_own_generators:  # else all still wait for a draw
                self._seed_generators(parts)

    # ------------------------------------------------------------------ threads

    def make_twins(self, count: int) -> list[StageRunner]:
        """Return a copy of this stage for each of `count` threads, with the same target and separate counts.

        From now on the time of this stage is the mean time of its twins: the stage is busy all the time if all threads
        are.
        """
        self._thread_count = count
        self._busy_ns *= count
        self._repeated_ns *= count
        twins = [copy.copy(self) for _ in range(count)]
        for twin in twins:
            own = {"_context": copy.copy(self._context), "_durations_ns": [], "_slow_threshold_ns": sys.maxsize}
            vars(twin).update(dict.fromkeys(_COUNTS, 0), **own)
        return twins

    def take_counts(self, twin: StageRunner, key: Key) -> None:
        """Move the counts of a twin since the last call to this stage, at the item `key`."""
        counts, twin_counts = vars(self), vars(twin)
        for name in _COUNTS:
            counts[name] += twin_counts[name]
            twin_counts[name] = 0
        self.get_queue_ns = twin.get_queue_ns
        self._item_name = twin_counts["_item_name"]
        for elapsed_ns in twin_counts["_durations_ns"]:
            self._record_item(key, elapsed_ns)
        twin_counts["_durations_ns"].clear()
        twin_counts["_names_items"] = self._names_items

    @property
    def is_conditional(self) -> bool:
        """Whether some items may go around the stage."""
        return self._predicate is not None

    def matches(self, key: Key, value: Any) -> bool:
        """Return whether the stage runs on an item, by its `when`. Counts the items that go around it."""
        if self._predicate is None:
            return True
        try:
            if self._runs_users_predicate:
                self._set_predicate_context(key)
            decision = self._predicate(value)
            is_match = bool(decision)
        except self._propagated_errors:
            raise
        except BaseException as error:
            raise self.record_failure(key, error, self._predicate) from error
        if this_process.pid != self._pid:
            self.end_forked_child(key)
        if decision is None:
            raise self.record_failure(key, NoneConditionError(self.label, format_key(self.global_key(key))))
        if not is_match:
            self._passed_by_count += 1
        return is_match

    def _set_predicate_context(self, key: Key) -> None:
        """Seed for the predicate under a separate name, so that it does not draw the same numbers as the stage."""
        name, key = f"{self.name}.when", self.global_key(key)
        stage_locals.context = Context(name, self._context.worker, self.epoch, key, self.seed)
        if self._seed_predicate is not None:
            self._seed_predicate((self.seed, self.epoch, name, key))

    def call(  # noqa: C901 - a call of a part would cost time for each item
        self, key: Key, box: list[Any]
    ) -> Any:
        """Call the target with the item in `box` and return its result, which may be a generator.

        The box is emptied before the target gets the item, so the input is freed when the call returns.
        """
        try:  # inlined `seed_item` and `_record_item`: calls would take a fifth of this function's time
            context = self._context
            context.item = seeded_key = key if self._is_unsharded else self.global_key(key)
            context.own_rng = None
            stage_locals.context = context
            if self._seed_generators is not None:
                seeded_item.parts = parts = (self.seed, self.epoch, self.name, seeded_key)
                if seeded_item.must_seed or self._has_own_generators:
                    self._seed_generators(parts)
            if self._names_items:
                self._item_name = name_item(box[0])
            started_ns = perf_counter_ns()
            result = self.target(box.pop())
            elapsed_ns = perf_counter_ns() - started_ns
        except self._propagated_errors:
            raise
        except BaseException as error:
            raise self.record_failure(key, error) from error
        if this_process.pid != self._pid:
            self.end_forked_child(key)
        if type(result) in _ONE_BY_ONE_TYPES:
            if type(result) in _ASYNC_TYPES:
                raise self.record_failure(key, AsyncResultError(self.label, result))
            if result is not None:
                return result  # a generator, whose parts are timed
            if self.refuses_none:
                raise self.make_none_error(key)
        durations_ns = self._durations_ns
        durations_ns.append(elapsed_ns)
        if elapsed_ns > self._slow_threshold_ns:
            self._record_slow_item(key, elapsed_ns)
        if len(durations_ns) >= _ITEMS_PER_FLUSH:
            self._flush_durations()
        return result

    def invoke(self, keys: Sequence[Key], values: list[Any]) -> list[Any]:
        """Call the target once for all items of `values`, and return one result for each, as `call` does for one item.

        A stage without a `batch` takes one item at a time, unless its target has `fetch_together`. An empty result then
        means that each item needs a separate call: the target has no such method, each item has its own seed, or the
        results are not one value per item. An error is thus an error of one item.
        """
        if self._takes_lists:
            return self._invoke_batch(keys, values)
        if len(values) > 1:
            return self._fetch_together(keys, values)
        return [self.call(keys[0], values)]

    def _fetch_together(self, keys: Sequence[Key], values: list[Any]) -> list[Any]:
        fetch_together = getattr(self.target, "fetch_together", None)
        if self.plan.reseed and not getattr(self.target, "draws_nothing", False):  # each item has its own seed
            fetch_together = None
        if fetch_together is None:
            return []
        self.seed_item(keys[0])
        started_ns = perf_counter_ns()
        try:
            results = fetch_together(values.copy())  # the dataset may change its list
        except self._propagated_errors:
            raise
        except BaseException as error:  # noqa: BLE001 - the item that raised it raises it again
            if this_process.pid != self._pid:
                self.end_forked_child(keys[0], error)
            return []
        if this_process.pid != self._pid:
            self.end_forked_child(keys[0])
        if not isinstance(results, list | tuple) or len(results) != len(keys):
            return []
        if not _ONE_BY_ONE_TYPES.isdisjoint(map(type, results)):
            return []
        self.last_timed_ns = perf_counter_ns() - started_ns
        self._busy_ns += self.last_timed_ns
        return list(results)

    def _invoke_batch(self, keys: Sequence[Key], values: list[Any]) -> list[Any]:
        """Call the target with the list of items. It must return one result for each."""
        try:
            self.seed_item(keys[0])
            names = list(map(name_item, values)) if self._names_items else [""] * len(keys)
            started_ns = perf_counter_ns()
            output = self.target(values)
            results = None if output is None and self.refuses_none else _to_list(output, len(keys))
        except self._propagated_errors:
            raise
        except BaseException as error:
            raise self.record_failure(keys[0], error) from error
        if this_process.pid != self._pid:
            self.end_forked_child(keys[0])
        if results is None:
            raise self.make_none_error(keys[0])
        if self.refuses_none:
            for key, result in zip(keys, results, strict=True):
                if result is None:
                    raise self.make_none_error(key)
        elapsed_ns = perf_counter_ns() - started_ns
        for key, name in zip(keys, names, strict=True):
            self._item_name = name
            self._record_item(key, elapsed_ns // len(keys))
        return results

    def iter_parts(self, key: Key, generator: Iterator[Any]) -> Iterator[list[Any]]:
        """Yield each part of a generator in a box. Seeds before each part, from the part's key."""
        rng = None if stage_locals.context is None else stage_locals.context.own_rng
        part = elapsed_ns = 0
        while True:
            try:
                if part:
                    self.seed_item((*key, part))
                    self._context.own_rng = rng
                started_ns = perf_counter_ns()
                box = [next(generator)]
            except StopIteration:
                if this_process.pid != self._pid:
                    self.end_forked_child((*key, part))
                self._record_item(key, elapsed_ns + perf_counter_ns() - started_ns)
                return
            except self._propagated_errors:
                raise
            except BaseException as error:
                raise self.record_failure((*key, part), error) from error
            if this_process.pid != self._pid:
                self.end_forked_child((*key, part))
            elapsed_ns += perf_counter_ns() - started_ns
            if box[0] is None and self.refuses_none:
                raise self.make_none_error((*key, part), "yielded")
            rng = self._context.own_rng
            yield box
            part += 1

    def run_timed(self, key: Key, function: Callable[[], Any]) -> Any:
        """Run work other than the stage's function: an order point's grouping, a source's read.

        The time counts as busy time. If the work was for an item, the caller adds `count_item`. A flush, and the read
        that finds the end of the source, are not for an item.
        """
        is_failed = True
        started_ns = perf_counter_ns()
        if self.trace is not None:
            self.trace.begin_item(key, started_ns)  # for the item that the source reads
        try:
            result = function()
            is_failed = False
        except (*self._propagated_errors, StopIteration):
            raise
        except BaseException as error:
            raise self.record_failure(key, error) from error
        finally:
            if this_process.pid != self._pid:
                self.end_forked_child(key)
            self.last_timed_ns = perf_counter_ns() - started_ns
            self._busy_ns += self.last_timed_ns
            if self.trace is not None:
                self.trace_call(key, started_ns, is_failed=is_failed)
        return result

    def run_item(self, key: Key, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run and count work on an item other than the stage's function, if there is no trace."""
        try:
            started_ns = perf_counter_ns()
            result = function(*arguments)
            elapsed_ns = perf_counter_ns() - started_ns
        except self._propagated_errors:
            raise
        except BaseException as error:
            raise self.record_failure(key, error) from error
        if this_process.pid != self._pid:
            self.end_forked_child(key)
        self._record_item(key, elapsed_ns)
        return result

    def trace_call(self, key: Key, begin_ns: int, count: int = 1, *, is_failed: bool) -> None:
        """Trace work on `count` items from `key` on that began at `begin_ns` and ends now."""
        if self.trace is not None:
            self.trace.add(_STAGE, begin_ns, perf_counter_ns(), key, self.plan.index, 0, 0, count, is_failed=is_failed)

    def count_item(self, key: Key) -> None:
        """Count the last timed work as an item."""
        self.count_items(key[0], 1, self.last_timed_ns)

    def count_items(self, first_item: int, count: int, share_ns: int) -> None:
        """Count items that were timed together, each with a share of `share_ns`."""
        self._busy_ns -= share_ns * count  # a flush adds it
        self._durations_ns.extend([share_ns] * (count - 1))
        self._record_item((first_item,), share_ns)

    def count_reads(self, first_item: int, durations_ns: list[int], failed_ns: int = 0) -> None:
        """Count consecutive items that a source has read, and the time of a failed read."""
        self._busy_ns += failed_ns
        self._durations_ns += durations_ns
        if max(durations_ns, default=0) > self._slow_threshold_ns:
            for item, elapsed_ns in enumerate(durations_ns, first_item):
                if elapsed_ns > self._slow_threshold_ns:
                    self._record_slow_item((item,), elapsed_ns)
        if len(self._durations_ns) >= _ITEMS_PER_FLUSH:
            self._flush_durations()

    def _record_item(self, key: Key, elapsed_ns: int) -> None:
        durations_ns = self._durations_ns
        durations_ns.append(elapsed_ns)
        if elapsed_ns > self._slow_threshold_ns:
            self._record_slow_item(key, elapsed_ns)
        if len(durations_ns) >= _ITEMS_PER_FLUSH:
            self._flush_durations()

    def _record_slow_item(self, key: Key, elapsed_ns: int) -> None:
        if self._slow_threshold_ns < 0:
            # A worker's first item includes lazy imports and initialization, so its time is not compared.
            self._slow_threshold_ns = 0
        else:
            self._region.record_slow_item(self.global_key(key)[0], elapsed_ns, self.get_queue_ns(), self._item_name)
            self._slow_threshold_ns = int(np.min(self._region.slow_items[:, 0]))
        self._names_items = elapsed_ns > _MIN_NAMED_NS
        self._item_name = ""

    def _flush_durations(self) -> None:
        count, total_ns = len(self._durations_ns), sum(self._durations_ns)
        self._item_count += count
        self._busy_ns += total_ns
        if total_ns < count * _MIN_MEAN_NAMED_NS:
            self._names_items = False
        self._region.add_durations(self._durations_ns)
        self._durations_ns.clear()

    def record_failure(self, key: Key, cause: BaseException, called: Any = None) -> StageError:
        """Count a failed item and return its StageError. `called` raised `cause`, if the target did not.

        Raises `cause` if it is not an item's failure: a full arena, or Ctrl-C unless the process ignores it.
        """
        if isinstance(cause, self._propagated_errors):
            raise cause
        if this_process.pid != self._pid:
            self.end_forked_child(key, cause)
        self._error_count += 1
        input_note = describe_failing_input(cause, self.plan, self.target if called is None else called)
        error = StageError(self.label, self.global_key(key), cause, input_note=input_note)
        if self.on_survivable_failure is not None and (self.plan.on_error == "skip" or self.plan.retries):
            self.on_survivable_failure(error)
        return error

    def _describe(self) -> str:
        return self.label if self.label == SOURCE_NAME else f"stage {self.label}"

    def end_forked_child(self, key: Key, error: BaseException | None = None) -> NoReturn:
        """End this forked child of the process, because the stage's code returned or raised `error` in it."""
        end_forked_child(self._pid, f"{self._describe()}, item {format_key(self.global_key(key))}", error)

    def make_none_error(self, key: Key, verb: str = "returned") -> StageError:
        """Count and return the error of a stage whose result for an item is None."""
        item = format_key(self.global_key(key))
        return self.record_failure(key, NoneResultError(self.label, item, verb))

    def count_dead_letter(self) -> None:
        """Count a dead letter on the board at once, because the end of an epoch waits for all letters."""
        self._region[StageCounter.DEAD_LETTERS] += 1

    def count_skipped(self) -> None:
        """Count an item that the stage dropped, or that was skipped because it failed."""
        self._skipped_count += 1

    def count_retry(self, failed_ns: int) -> None:
        """Count a repeated attempt, which failed after `failed_ns`."""
        self._retry_count += 1
        self._repeated_ns += failed_ns

    def flush(self) -> None:
        """Write the counts to the board."""
        self._flush_durations()
        region = self._region
        region[StageCounter.ITEMS] = self._item_count
        region[StageCounter.SKIPPED] = self._skipped_count
        region[StageCounter.PASSED_BY] = self._passed_by_count
        region[StageCounter.FAILED_ATTEMPTS] = self._error_count
        region[StageCounter.RETRIES] = self._retry_count
        region[StageCounter.REPEATED_NS] = self._repeated_ns // self._thread_count
        region[StageCounter.BUSY_NS] = self._busy_ns // self._thread_count


def _make_seeder(seed_own_generators: Seeder | None) -> Callable[[SeedParts], None]:
    """Return the function that seeds the global generators and a target's own generators for an item."""
    seed_global_generators = make_global_seeder()
    if seed_own_generators is None:
        return seed_global_generators

    def seed_all(parts: SeedParts) -> None:
        seed_global_generators(parts)
        seed_own_generators(derive_seed(*parts))

    return seed_all


def _refuse_none(predicate: Predicate, stage: str) -> Predicate:
    """Return the predicate, changed to raise NoneConditionError if its result is None."""

    def decide(item: Any) -> object:
        decision = predicate(item)
        if decision is None:
            raise NoneConditionError(stage)
        return decision

    return decide


def _to_list(output: Iterable[Any], count: int) -> list[Any]:
    """Return the results of a stage with a `batch`. Raises ValueError unless there is one per item."""
    results = list(output)
    if len(results) != count:
        raise ValueError(
            f"a stage with `batch` was called with {count} items and returned {len(results)}; it must return one "
            "result (or stagepipe.SKIP) for each"
        )
    return results


def make_private_region(stage_count: int) -> ProcessRegion:
    """Return the counters of a process with `stage_count` stages in private memory, for `--inline`."""
    words = np.zeros(region_word_count(stage_count), np.uint64)
    return ProcessRegion(memoryview(words.data).cast("B").cast("Q"), words, 0, stage_count)


def make_private_stage_region() -> StageRegion:
    """Return a stage's counters in private memory, for `--inline`."""
    words = np.zeros(STAGE_WORDS, np.uint64)
    return StageRegion(words, memoryview(words.data).cast("B").cast("Q"), 0)
