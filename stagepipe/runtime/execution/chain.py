"""The stages of one process, called one after the other: a fused stage costs a function call.

An item travels in a box, a list of one, and its receiver empties the box. So no caller up the stack keeps the item
alive: an unreferenced item travels on without a copy, and its shared memory is free at once.

A failed call is repeated with the same seeds and the same input. A function may change its input before it raises, so
the input is saved before the first call, as a pickle with out-of-band buffers. Read-only buffers (inputs in shared
memory) are kept by reference, not copied. If a stage fails, the item goes no further: the failure ends the run, or with
`on_error: skip` a skip takes the item's place.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from time import perf_counter_ns
from types import GeneratorType
from typing import Any, Final, Protocol

from stagepipe.core import SKIP, Key, Skip
from stagepipe.runtime.execution.cache import make_cached_call
from stagepipe.runtime.execution.errors import CallTimeoutError, StageError
from stagepipe.runtime.execution.stage import ItemCall, Route, StageCall, StageRunner
from stagepipe.runtime.protocol import ForcedSkip, UnbatchedRange, UnpicklableResultError, WorkerDiedError
from stagepipe.timing import ProcessRegion, TraceKind

Box = list[Any]
"""A list of one item. The receiver takes the item out and leaves the list empty."""

ItemHeader = tuple[int, bytes]
"""The data that travels with an item: its samples and its meta."""

_ITEM = int(TraceKind.ITEM)
_SPECIAL_TYPES: Final = frozenset({Skip, GeneratorType})
"""Result types that are not an input of the next stage."""


class ChunkInHand:
    """The unfinished items of a chunk. Their keys end with consecutive numbers."""

    __slots__ = ("_counted_number", "first_stage", "header", "next_number", "prefix", "shares_ns", "values")

    def __init__(self, key: Key, values: list[Any], header: ItemHeader = (1, b"")) -> None:
        """`key` belongs to the first item. SKIP stands for a dropped item."""
        self.prefix = key[:-1]
        self.next_number = key[-1]
        values.reverse()
        self.values = values
        """In reverse order: the last item comes first."""
        self.header = header
        self.first_stage = 0
        """The stage from which on to run the items, by its index in the process."""
        self.shares_ns: list[tuple[StageRunner, int]] = []
        """Stages that ran on all items together, and the share of each item."""
        self._counted_number = self.next_number

    def count_shares(self) -> None:
        """Count the shares of the finished items."""
        first, count = self._counted_number, self.next_number - self._counted_number
        if count:
            self._counted_number = self.next_number
            for stage, share_ns in self.shares_ns:
                stage.count_items(self.prefix[0] if self.prefix else first, count, share_ns)


_DEFAULT_TIMEOUTS: Final = 3
"""The number of attempts that may exceed `timeout` unless `retries` is set: an item may kill as many workers."""

RestoreInput = Callable[[], Any]
"""Returns a fresh copy of the input at each call."""


def snapshot_input(value: Any) -> RestoreInput | None:
    """Save `value` and return a function that restores it; None if it can be neither pickled nor copied.

    >>> box = [1]
    >>> restore = snapshot_input(box)
    >>> box.append(2)
    >>> restore()
    [1]
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
    except Exception:  # noqa: BLE001 - a user's pickling may raise anything
        return _snapshot_by_copy(value)
    frozen_buffers = [view if view.readonly else bytes(view) for view in views]
    del views, buffers
    return lambda: pickle.loads(data, buffers=[bytearray(b) if isinstance(b, bytes) else b for b in frozen_buffers])


def _snapshot_by_copy(value: Any) -> RestoreInput | None:
    try:
        snapshot = copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - a user's copying may raise anything
        return None
    return partial(copy.deepcopy, snapshot)


def call_with_retries(
    stage: StageRunner, attempt: Callable[[], Any], inputs: list[Any], restore_inputs: RestoreInput | None
) -> Any:
    """Call `attempt`, and repeat it as often as the plan of `stage` allows.

    `attempt` takes its input from the list `inputs`, which is filled again before each repeat. If `restore_inputs` is
    None, the list cannot be filled and there is only one attempt. Raises the last StageError, with the number of
    attempts.
    """
    attempts = 1
    while True:
        started_ns = perf_counter_ns()
        try:
            return attempt()
        except StageError as error:
            error.attempts = attempts
            if restore_inputs is None or error.is_mistake or attempts > _count_retries(stage, error):
                raise
        attempts += 1
        stage.count_retry(perf_counter_ns() - started_ns)
        inputs[:] = restore_inputs()


def _count_retries(stage: StageRunner, error: StageError) -> int:
    """Return the number of allowed repeats. If `retries` is not set, a timeout counts like a kill."""
    default = _DEFAULT_TIMEOUTS - 1 if isinstance(error.cause, CallTimeoutError) else 0
    return default if stage.plan.retries is None else stage.plan.retries


def invoke_with_retries(stage: StageRunner, invoke: StageCall, keys: Sequence[Key], values: list[Any]) -> list[Any]:
    """Call `invoke` of `stage` with retries. A generator is returned after its first part.

    If failed items are skipped, a batch that still fails is tried item by item, so that only failing items are skipped.
    A StageError takes the place of each.
    """
    one_by_one = stage.skips_failures and len(keys) > 1
    restore_values = snapshot_input(values) if one_by_one or _may_be_repeated(stage) else None

    def attempt() -> list[Any]:
        results = invoke(keys, values)
        if type(results[0]) is GeneratorType and stage.plan.batch is None:
            results[0] = _start_generator(stage, keys[0], results[0])
        return results

    try:
        results: list[Any] = call_with_retries(stage, attempt, values, restore_values)
    except StageError as error:
        if restore_values is None or error.is_mistake or not one_by_one:
            raise
        attempts = error.attempts + 1
    else:
        return results
    return [_invoke_single(invoke, key, value, attempts) for key, value in zip(keys, restore_values(), strict=True)]


def _invoke_single(invoke: StageCall, key: Key, value: Any, attempts: int) -> Any:
    try:
        return invoke((key,), [value])[0]
    except StageError as error:
        if error.is_mistake:
            raise
        error.attempts = attempts
        return error


def matches_with_retries(stage: StageRunner, key: Key, value: Any) -> bool:
    """Call `stage.matches` with retries."""
    if not stage.plan.retries:
        return stage.matches(key, value)
    is_match: bool = call_with_retries(stage, lambda: stage.matches(key, value), [], list)
    return is_match


def _start_generator(stage: StageRunner, key: Key, generator: GeneratorType[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Produce the generator's first part now, because an error in it can still be retried."""
    try:
        first_part = [stage.run_timed((*key, 0), partial(next, generator))]
    except StopIteration:
        first_part = []
    return _resume_generator(first_part, generator)


def _resume_generator(first_part: list[Any], generator: GeneratorType[Any, Any, Any]) -> Generator[Any, Any, Any]:
    try:
        if first_part:
            yield first_part.pop()
            yield from generator
    finally:
        generator.close()


class ChainOutput(Protocol):
    """The destination of a chain's results: a hop, or inline the next process's chain."""

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send an item that `add` (if there is one) does not take. Leaves the box empty."""

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Report that a stage dropped the item."""

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Report that the item failed at `stage`. Without an error, a cursor asks for the skip."""

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        """Report that a generator yielded `part_count` parts for `key`."""


class StageChain:
    """The stages of a process from one point on, and the output for their results."""

    def __init__(
        self,
        stages: list[StageRunner],
        output: ChainOutput,
        region: ProcessRegion | None = None,
        first_call: ItemCall | None = None,
    ) -> None:
        """Chain `stages` (if empty, items go straight to `output`). `region` shows the running stage.

        `first_call` replaces the call of the first stage if that is a source, which takes no item. If the stages have a
        trace, it records each call of a stage, and each item from its receipt until its result is sent.
        """
        self._stages = stages
        self._output = output
        self._add: Callable[[Any, Key], bool] | None = getattr(output, "add", None)
        self._ready_items: Sequence[Any] = getattr(output, "ready_items", ())
        """Inline: the items to deliver to the caller before another item runs."""
        self._trace = stages[0].trace if stages else None
        self._calls = [_select_item_call(stage) for stage in stages]
        if first_call is not None:
            self._calls[0] = first_call
        self._stage_word: memoryview | list[int] = [0] if region is None else region.current_stage_word
        """The index in the process of the running stage, in case the process dies or hangs in it; 0 between stages."""
        self._first_index = 0 if region is None else region.stage_count - len(stages)
        self._calls_from = [
            list(enumerate(self._calls[first:], self._first_index + first)) for first in range(len(stages) + 1)
        ]
        """The calls from each stage on, with their indices in the process."""
        self.set_forced_skips(())

    def set_forced_skips(self, skips: Iterable[ForcedSkip], unbatched_ranges: Iterable[UnbatchedRange] = ()) -> None:
        """Skip items from now on without a call, and call others singly. Ignores stages of other processes."""
        names = {stage.name for stage in self._stages}
        self._forced_skips: dict[tuple[str, Key], StageError | None] = {
            (skip.stage, skip.key): _make_skip_error(skip) for skip in skips if skip.stage in names
        }
        self._unbatched_ranges = [each for each in unbatched_ranges if each.stage in names]

    def is_unbatched(self, first_item: int, last_item: int, index: int = 0) -> bool:
        """Whether stage `index` takes one of the items singly, because a call with several of them killed it."""
        return any(
            each.stage == self._stages[index].name and each.first_item <= last_item and first_item <= each.last_item
            for each in self._unbatched_ranges
        )

    def push(self, key: Key, box: Box, samples: int, meta: bytes, first_stage: int = 0) -> None:
        """Run an item through the stages from index `first_stage` on."""
        stages, calls, trace, stage_word = self._stages, self._calls, self._trace, self._stage_word
        begin_ns = 0 if trace is None else trace.take_item_begin(key)
        try:
            while first_stage < len(calls):
                if self._forced_skips and self._skip_if_forced(stages[first_stage], key, (samples, meta)):
                    return
                stage_word[0] = self._first_index + first_stage
                try:
                    result = calls[first_stage](key, box)
                except StageError as error:
                    self._skip(stages[first_stage], key, error, (samples, meta))
                    return
                finally:
                    stage_word[0] = 0
                first_stage += 1
                box.append(result)
                del result
                if type(box[0]) in _SPECIAL_TYPES:
                    self._end_early(first_stage - 1, key, box, (samples, meta))
                    return
            if samples == 1 and not meta and self._add is not None and self._add(box[0], key):
                box.clear()
            else:
                self.send_alone(key, box, samples, meta)
        finally:
            if trace is not None:
                trace.add(_ITEM, begin_ns, perf_counter_ns(), key)

    def send_alone(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send a result that the output's `add` does not take."""
        try:
            self._output.send_item(key, box, samples, meta)
        except UnpicklableResultError as error:
            if not self._stages or not self._stages[-1].skips_failures:
                raise
            self._skip(self._stages[-1], key, self._stages[-1].record_failure(key, error), (samples, meta))

    def push_chunk(  # noqa: C901, PLR0912, PLR0915 - an inner call would cost time for each item
        self, chunk: ChunkInHand, region: ProcessRegion, max_ns: int
    ) -> None:
        """Run the items of a chunk until none is left, or until the first one that ends after `max_ns`.

        Inline, it also stops when an item is ready for the caller. The board names each item before its code runs. An
        item that raises is no longer in the chunk; the items before it are complete.
        """
        prefix, number, values, first_stage = chunk.prefix, chunk.next_number, chunk.values, chunk.first_stage
        samples, meta = header = chunk.header
        push, word, stage_word = self.push, region.current_item_word, self._stage_word
        add, ready_items, calls = self._add, self._ready_items, None
        if samples == 1 and not meta and self._trace is None and not self._forced_skips:  # only calls needed
            calls = self._calls_from[first_stage]
        now_ns = perf_counter_ns()
        end_ns = now_ns + max_ns
        try:
            while values and now_ns <= end_ns and not ready_items:
                if prefix:
                    key: Key = (*prefix, number)
                    region.set_current_key(key)
                    number += 1
                else:
                    key = (number,)
                    number += 1
                    word[0] = number
                box = [values.pop()]
                if box[0] is SKIP:
                    self._pass_dropped(key, header, first_stage)
                elif calls is None or add is None:
                    push(key, box, samples, meta, first_stage)
                else:  # the fast path: only calls, then `add`
                    index = 0
                    try:
                        for index, call in calls:
                            if index:
                                stage_word[0] = index
                            box.append(call(key, box))
                            if type(box[0]) in _SPECIAL_TYPES:
                                break
                    except StageError as error:
                        stage_word[0] = 0
                        self._skip(self._stages[index - self._first_index], key, error, header)
                    else:
                        if index:
                            stage_word[0] = 0
                        if type(box[0]) in _SPECIAL_TYPES:
                            self._end_early(index - self._first_index, key, box, header)
                        elif not add(box[0], key):
                            self.send_alone(key, box, 1, b"")
                now_ns = perf_counter_ns()
            if prefix:
                region.set_current_key(())
            else:
                word[0] = 0
        finally:
            chunk.next_number = number
            if not ready_items:  # else the caller comes back at once
                chunk.count_shares()

    def _pass_dropped(self, key: Key, header: ItemHeader, first_stage: int) -> None:
        """Send the tombstone of an item that a stage before `first_stage` dropped, perhaps in another process."""
        if first_stage:
            self._drop(self._stages[first_stage - 1], key, header)
        else:
            self._output.send_tombstone(key, *header)

    def _end_early(self, index: int, key: Key, box: Box, header: ItemHeader) -> None:
        """Handle a stage's result that is not an input of the next stage."""
        if box[0] is SKIP:
            self._drop(self._stages[index], key, header)
        else:
            self._push_parts(index + 1, key, box.pop(), header[1])

    def call_together(self, chunk: ChunkInHand, region: ProcessRegion) -> None:
        """Call the next stage once for all items of an untouched chunk, if the stage supports that."""
        values, index, first_number = chunk.values, chunk.first_stage, chunk.next_number
        stage, count = self._stages[index], len(values)
        if self._calls[index] != stage.call or self._forced_skips or count == 1:
            return
        keys = [(*chunk.prefix, number) for number in range(first_number, first_number + count)]
        if self.is_unbatched(keys[0][0], keys[-1][0], index):
            return
        values.reverse()
        region.set_current_keys(keys)
        self._stage_word[0] = self._first_index + index
        results = stage.invoke(keys, values)
        region.set_current_key(())
        if results:
            values[:] = results
            chunk.first_stage = index + 1
            chunk.shares_ns.append((stage, stage.last_timed_ns // count))
        values.reverse()

    def run_first(self, key: Key) -> Any:
        """Run the first stage, a source, and return its result; SKIP if the item ends here, after reporting that."""
        stage, header = self._stages[0], (1, b"")
        if self._forced_skips and self._skip_if_forced(stage, key, header):
            return SKIP
        try:
            result = self._calls[0](key, [])
        except StageError as error:
            self._skip(stage, key, error, header)
            return SKIP
        if result is SKIP:
            self._drop(stage, key, header)
        return result

    # ------------------------------------------------------------------ items that end here

    def reject(self, key: Key, error: Exception, header: ItemHeader) -> None:
        """Count an item that has not reached the first stage as failed there."""
        self.skip_failed(key, self._stages[0].record_failure(key, error), header)

    def skip_failed(self, key: Key, error: StageError, header: ItemHeader) -> None:
        """Skip an item that failed at the first stage. Raises the error if the stage does not skip failed items."""
        self._skip(self._stages[0], key, error, header)

    def _drop(self, stage: StageRunner, key: Key, header: ItemHeader) -> None:
        """Send a tombstone in the item's place, because the stage returned SKIP."""
        stage.count_skipped()
        self._output.send_tombstone(key, *header)

    def _skip_if_forced(self, stage: StageRunner, key: Key, header: ItemHeader) -> bool:
        """Skip an item that the seek names. Returns whether the seek names it."""
        skip_id = (stage.name, key)
        if skip_id not in self._forced_skips:
            return False
        self._skip(stage, key, self._forced_skips[skip_id], header)
        return True

    def _skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Send a skip in the item's place. Raises the error if the stage does not skip failed items."""
        if error is not None and (error.is_mistake or not stage.skips_failures):
            raise error
        stage.count_skipped()
        self._output.send_skip(stage, key, error, header)

    # ------------------------------------------------------------------ parts and batches

    def _push_parts(self, next_stage: int, key: Key, generator: GeneratorType[Any, Any, Any], meta: bytes) -> None:
        """Push the parts that stage `next_stage - 1` yields. A failed part is the last one."""
        stage, part_count, header = self._stages[next_stage - 1], 0, (1, meta)
        parts = stage.iter_parts(key, generator)
        if self._trace is not None:
            parts = _iter_traced(stage, key, parts)
        try:
            while True:
                part_key = (*key, part_count)
                if self._forced_skips and self._skip_if_forced(stage, part_key, header):
                    part_count += 1
                    break
                try:
                    box = next(parts, None)
                except StageError as error:
                    self._skip(stage, part_key, error, header)
                    part_count += 1
                    break
                if box is None:
                    break
                part_count += 1
                if box[0] is SKIP:
                    self._drop(stage, part_key, header)
                else:
                    self.push(part_key, box, 1, meta, next_stage)
        finally:
            generator.close()
        self._output.send_close(key, part_count, meta)

    def choose_route(self, key: Key, value: Any, header: ItemHeader) -> Route:
        """Return whether an item belongs in a batch of the first stage. Skips the item if its condition fails.

        Pass an item that goes around to `push`, from the second stage on, or to `push_batch` among other items.
        """
        stage = self._stages[0]
        if not stage.is_conditional or (stage.name, key) in self._forced_skips:
            return Route.CALL
        try:
            return Route.CALL if matches_with_retries(stage, key, value) else Route.AROUND
        except StageError as error:
            self._skip(stage, key, error, header)
            return Route.FAILED

    def push_batch(
        self,
        keys: list[Key],
        values: list[Any],
        headers: list[ItemHeader],
        passing_items: dict[Key, Any] | None = None,
    ) -> None:
        """Run a list of items through the first stage, which has a `batch`, and each result through the other stages.

        `passing_items` go around the first stage. Their keys are among `keys`, their values are not in `values`.
        """
        if self._trace is not None:
            self._trace.begin_item((), 0)  # the items begin after their common call
        stage = self._stages[0]
        passing_items = passing_items or {}
        if self._forced_skips:
            kept = [not self._skip_if_forced(stage, *item) for item in zip(keys, headers, strict=True)]
            keys, values[:], headers = (list(compress(part, kept)) for part in (keys, values, headers))
        called_keys = [key for key in keys if key not in passing_items] if passing_items else keys
        if stage.copies_matching:
            values[:] = map(copy.deepcopy, values)
        results = self._call_batch(stage, called_keys, values) if called_keys else []
        values.clear()
        results.reverse()
        for key, header in zip(keys, headers, strict=True):
            if key in passing_items:
                self.push(key, [passing_items.pop(key)], *header, 1)
                continue
            box = [results.pop()]
            if box[0] is SKIP:
                self._drop(stage, key, header)
            elif isinstance(box[0], StageError):
                self._skip(stage, key, box.pop(), header)
            else:
                self.push(key, box, *header, 1)

    def _call_batch(self, stage: StageRunner, keys: list[Key], values: list[Any]) -> list[Any]:
        try:
            return _select_call(stage)(keys, values)
        except StageError as error:
            if error.is_mistake or not stage.skips_failures:
                raise
            return [error] * len(keys)


def _make_skip_error(skip: ForcedSkip) -> StageError | None:
    """Return the failure of an item that killed too many workers; None for a skip that a cursor asks for."""
    return StageError(skip.stage, skip.key, WorkerDiedError(skip.error), skip.kill_count) if skip.error else None


def _may_be_repeated(stage: StageRunner) -> bool:
    plan = stage.plan
    return bool(plan.retries) or (plan.is_async and plan.timeout_ns is not None and plan.retries is None)


def _invoke_traced(stage: StageRunner, keys: Sequence[Key], values: list[Any]) -> list[Any]:
    begin_ns, is_failed = perf_counter_ns(), True
    try:
        results = stage.invoke(keys, values)
        is_failed = False
    finally:
        stage.trace_call(keys[0], begin_ns, len(keys), is_failed=is_failed)
    return results


def _iter_traced(stage: StageRunner, key: Key, parts: Iterator[Box]) -> Iterator[Box]:
    """Yield the parts of a generator, and trace each."""
    part = 0
    while True:
        begin_ns, is_failed = perf_counter_ns(), True
        try:
            box = next(parts, None)
            is_failed = False
        finally:
            stage.trace_call((*key, part), begin_ns, is_failed=is_failed)
        if box is None:
            return
        yield box
        part += 1


def _select_call(stage: StageRunner) -> StageCall:
    """Return the function that calls a stage: `invoke`, with retries, cache and condition as far as the plan has them.

    The items of a batch are chosen earlier: see `choose_route`.
    """
    plan = stage.plan
    is_batch = plan.batch is not None
    is_repeated = _may_be_repeated(stage) or (is_batch and stage.skips_failures)
    call: StageCall = stage.invoke if stage.trace is None else partial(_invoke_traced, stage)
    if is_repeated:
        call = partial(invoke_with_retries, stage, call)
    if is_batch:
        return call
    if plan.cache_plan is not None:
        call = make_cached_call(stage, plan.cache_plan, call)
    return _with_condition(stage, call) if stage.is_conditional else call


def _select_item_call(stage: StageRunner) -> ItemCall:
    """Return the function that calls a stage with one item: `call` if `_select_call` returns `invoke`."""
    call = _select_call(stage)
    return stage.call if call == stage.invoke and stage.plan.batch is None else lambda key, box: call((key,), box)[0]


def _with_condition(stage: StageRunner, call: StageCall) -> StageCall:
    """Return a call that returns items unchanged if they do not match."""

    def call_if_matching(keys: Sequence[Key], box: Box) -> list[Any]:
        if not matches_with_retries(stage, keys[0], box[0]):
            return [box.pop()]
        if stage.copies_matching:
            box[0] = copy.deepcopy(box[0])
        return call(keys, box)

    return call_if_matching
