"""The stages of one process, called one after the other: a fused stage costs a function call. In workers and inline.

An item travels in a box, a list of one, and its receiver empties the box. So no caller up the stack keeps the item
alive: an unreferenced item travels on without a copy, and its shared memory is free at once.

An item whose stage fails goes no further. The failure ends the run, or with `on_error: skip` a skip takes the item's
place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from itertools import compress
from types import GeneratorType
from typing import Any, Protocol

from stagepipe.core import SKIP, Key
from stagepipe.runtime.execution.cache import make_cached_call
from stagepipe.runtime.execution.retry import (
    call_batch_with_retries,
    call_stage_with_retries,
    matches_with_retries,
)
from stagepipe.runtime.execution.routing import Route
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.runtime.execution.stage_error import StageError
from stagepipe.runtime.protocol import ForcedSkip, UnpicklableResultError, WorkerDiedError
from stagepipe.timing import ProcessRegion

Box = list[Any]
"""A list of one item. The receiver takes the item out and leaves the list empty."""

ItemHeader = tuple[int, bytes]
"""What travels with an item: its samples and its meta."""

StageCall = Callable[[Any, Any], Any]
"""Runs a stage: called with a key and a box, or with lists of keys and values where the stage has a `batch`."""


class ChainOutput(Protocol):
    """Where a chain sends its results: a hop, or inline the next process's chain."""

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Send an item; the box is left empty."""

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Report that a stage dropped the item."""

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Report that the item failed at `stage`; no error means that it is skipped because it was before."""

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        """Report that a generator yielded `part_count` parts for `key`."""


class StageChain:
    """The stages of a process from one point on, and where their results go."""

    def __init__(
        self,
        stages: list[StageRunner],
        output: ChainOutput,
        region: ProcessRegion | None = None,
        first_call: StageCall | None = None,
    ) -> None:
        """Chain `stages` (none: items go straight to `output`). `region` shows which stage is running.

        `first_call` runs the first stage where it is a source, which is not called with an item.
        """
        self._stages = stages
        self._output = output
        self._calls = [_select_call(stage) for stage in stages]
        if first_call is not None:
            self._calls[0] = first_call
        if region is not None:
            first_index = region.stage_count - len(stages)
            self._calls = [
                _with_stage_marker(region, index, call) if index else call
                for index, call in enumerate(self._calls, first_index)
            ]
        self._forced_skips: dict[tuple[str, Key], StageError | None] = {}

    def set_forced_skips(self, skips: Iterable[ForcedSkip]) -> None:
        """Skip these items from now on, without calling their stage. Those of other processes are ignored."""
        names = {stage.name for stage in self._stages}
        self._forced_skips = {(skip.stage, skip.key): _make_skip_error(skip) for skip in skips if skip.stage in names}

    def push(self, key: Key, box: Box, samples: int, meta: bytes, first_stage: int = 0) -> None:
        """Run an item through the stages from index `first_stage` on."""
        stages = self._stages
        while first_stage < len(stages):
            result = self.run_stage(first_stage, key, box, (samples, meta))
            if result is SKIP:
                return
            first_stage += 1
            if type(result) is GeneratorType:
                self._push_parts(first_stage, key, result, meta)
                return
            box.append(result)
            del result
        try:
            self._output.send_item(key, box, samples, meta)
        except UnpicklableResultError as error:
            if not stages or not stages[-1].skips_failures:
                raise
            self._skip(stages[-1], key, stages[-1].record_failure(key, error), (samples, meta))

    def make_item_call(self) -> Callable[[Key, Any], Any] | None:
        """Return a function that calls the only stage with an item, and returns the result or raises a StageError.

        Its results go to `push_result`, its errors to `skip_failed`. None where an item takes more than one call.
        """
        return self._stages[0].make_item_call() if self._is_one_call() else None

    def call_together(self, keys: list[Key], values: list[Any]) -> list[Any] | None:
        """Return the results of the only stage for consecutive items, for `push_result`; None where each goes alone."""
        return self._stages[0].call_together(keys, values) if self._is_one_call() else None

    def _is_one_call(self) -> bool:
        """Whether an item takes one call of one stage."""
        return len(self._stages) == 1 and not self._forced_skips and self._calls[0] == self._stages[0].call

    def push_result(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Push what the first stage has returned."""
        if box[0] is SKIP:
            self._drop(self._stages[0], key, (samples, meta))
        elif type(box[0]) is GeneratorType:
            self._push_parts(1, key, box.pop(), meta)
        else:
            self.push(key, box, samples, meta, 1)

    def skip_failed(self, key: Key, error: StageError, header: ItemHeader) -> None:
        """Skip an item that failed at the first stage; raise the error where the stage does not skip what fails."""
        self._skip(self._stages[0], key, error, header)

    def run_stage(self, index: int, key: Key, box: Box, header: ItemHeader) -> Any:
        """Run a stage on the item in `box` and return its result; SKIP where the item ends here, which is sent on."""
        stage = self._stages[index]
        if self._forced_skips and self._skip_if_forced(stage, key, header):
            return SKIP
        try:
            result = self._calls[index](key, box)
        except StageError as error:
            self._skip(stage, key, error, header)
            return SKIP
        if result is SKIP:
            self._drop(stage, key, header)
        return result

    # ------------------------------------------------------------------ items that go no further

    def reject(self, key: Key, error: Exception, header: ItemHeader) -> None:
        """Count an item that has not reached the first stage as failed there."""
        self.skip_failed(key, self._stages[0].record_failure(key, error), header)

    def _drop(self, stage: StageRunner, key: Key, header: ItemHeader) -> None:
        """Send a tombstone in the item's place: the stage returned SKIP for it."""
        stage.count_skipped()
        self._output.send_tombstone(key, *header)

    def _skip_if_forced(self, stage: StageRunner, key: Key, header: ItemHeader) -> bool:
        """Skip an item that the seek names; return whether it does."""
        skip_id = (stage.name, key)
        if skip_id not in self._forced_skips:
            return False
        self._skip(stage, key, self._forced_skips[skip_id], header)
        return True

    def _skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Send a skip in the item's place; raise the error where the stage does not skip what fails."""
        if error is not None and (error.is_mistake or not stage.skips_failures):
            raise error
        stage.count_skipped()
        self._output.send_skip(stage, key, error, header)

    # ------------------------------------------------------------------ parts and batches

    def _push_parts(self, next_stage: int, key: Key, generator: GeneratorType[Any, Any, Any], meta: bytes) -> None:
        """Push the parts that stage `next_stage - 1` yields. A part that fails is the last one."""
        stage, part_count, header = self._stages[next_stage - 1], 0, (1, meta)
        parts = stage.iter_parts(key, generator)
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
        """Return whether an item belongs into a batch of the first stage. One whose condition fails is skipped here.

        An item that passes by goes on by `push`, from the second stage on, or by `push_batch` among others.
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
        """Run a list of items through the first stage, which has a `batch`, and each result through the others.

        The items of `passing_items` pass the first stage by. Their keys are among `keys`, their values not in `values`.
        """
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
            return self._calls[0](keys, values)  # type: ignore[no-any-return]
        except StageError as error:
            if error.is_mistake or not stage.skips_failures:
                raise
            return [error] * len(keys)


def _make_skip_error(skip: ForcedSkip) -> StageError | None:
    """Return the failure of an item that has killed too many workers; None for a skip that a cursor asks for."""
    return StageError(skip.stage, skip.key, WorkerDiedError(skip.error), skip.kill_count) if skip.error else None


def _with_stage_marker(region: ProcessRegion, stage_index: int, call: StageCall) -> StageCall:
    """Wrap a call so that the board names the running stage, should the process die or hang in it."""

    def call_marked(key: Any, value: Any) -> Any:
        region.set_current_stage(stage_index)
        try:
            return call(key, value)
        finally:
            region.set_current_stage(0)

    return call_marked


def _select_call(stage: StageRunner) -> StageCall:
    """Return how to call a stage: directly, unless its plan asks for retries, or for some of the items only.

    The items of a batch have been chosen before: see `choose_route`.
    """
    plan = stage.plan
    if plan.batch is not None:
        needs_retry = plan.retries or stage.skips_failures
        return partial(call_batch_with_retries, stage) if needs_retry else stage.call_batch
    call: StageCall = partial(call_stage_with_retries, stage) if plan.retries else stage.call
    if plan.cache_plan is not None:
        call = make_cached_call(stage, plan.cache_plan, call)
    return _with_condition(stage, call) if stage.is_conditional else call


def _with_condition(stage: StageRunner, call: StageCall) -> StageCall:
    """Return a call that returns an item which does not match as it is."""

    def call_if_matching(key: Key, box: Box) -> Any:
        if not matches_with_retries(stage, key, box[0]):
            return box.pop()
        if stage.copies_matching:
            box[0] = copy.deepcopy(box[0])
        return call(key, box)

    return call_if_matching
