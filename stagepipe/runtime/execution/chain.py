"""The stages of one process, called one after the other: a fused stage costs a function call. In workers and inline.

An item travels in a box, a list of one, and its receiver empties the box. So no caller up the stack keeps the item
alive: an unreferenced item travels on without a copy, and its shared memory is free at once.

An item whose stage fails goes no further. The failure ends the run, or with `on_error: skip` a skip takes the item's
place.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial
from itertools import compress
from types import GeneratorType
from typing import Any, Protocol

from stagepipe.core import SKIP, Key
from stagepipe.runtime.execution.retry import call_batch_with_retries, call_with_retries
from stagepipe.runtime.execution.stage import StageError, StageRunner
from stagepipe.runtime.protocol import ForcedSkip, UnpicklableResultError, WorkerDiedError
from stagepipe.timing import ProcessCounter, ProcessRegion

Box = list[Any]
"""A list of one item. The receiver takes the item out and leaves the list empty."""

ItemHeader = tuple[int, bytes]
"""What travels with an item: its samples and its meta."""

ForcedSkips = dict[tuple[str, Key], StageError | None]
"""By (stage, key), what is skipped without a call: an earlier skip (None), or an item that killed too many workers."""


def select_forced_skips(stages: Container[str], skips: Iterable[ForcedSkip]) -> ForcedSkips:
    """Return the skips of a seek that concern `stages`."""
    forced_skips: ForcedSkips = {}
    for skip in skips:
        if skip.stage in stages:
            error = StageError(skip.stage, skip.key, WorkerDiedError(skip.error), skip.kill_count)
            forced_skips[skip.stage, skip.key] = error if skip.error else None
    return forced_skips


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

    def __init__(self, stages: list[StageRunner], output: ChainOutput, region: ProcessRegion | None = None) -> None:
        """Chain `stages` (none: items go straight to `output`). `region` shows which stage is running."""
        self._stages = stages
        self._output = output
        self._calls = [_select_call(stage) for stage in stages]
        if region is not None and region.stage_count > 1:
            first_index = region.stage_count - len(stages)
            self._calls = [
                _with_stage_marker(region, first_index + offset, call) for offset, call in enumerate(self._calls)
            ]
        self._forced_skips: ForcedSkips = {}

    def set_forced_skips(self, skips: Iterable[ForcedSkip]) -> None:
        """Skip these items from now on, without calling their stage; see `select_forced_skips`."""
        self._forced_skips = select_forced_skips({stage.name for stage in self._stages}, skips)

    def push(self, key: Key, box: Box, samples: int, meta: bytes, first_stage: int = 0) -> None:
        """Run an item through the stages from index `first_stage` on."""
        stages, calls, forced_skips = self._stages, self._calls, self._forced_skips
        while first_stage < len(stages):
            stage = stages[first_stage]
            if forced_skips and (stage.name, key) in forced_skips:
                self._skip(stage, key, forced_skips[stage.name, key], (samples, meta))
                return
            try:
                result = calls[first_stage](key, box)
            except StageError as error:
                self._skip(stage, key, error, (samples, meta))
                return
            first_stage += 1
            if type(result) is GeneratorType:
                self._push_parts(first_stage, key, result, meta)
                return
            if result is SKIP:
                stage.count_skipped()
                self._output.send_tombstone(key, samples, meta)
                return
            box.append(result)
            del result
        try:
            self._output.send_item(key, box, samples, meta)
        except UnpicklableResultError as error:
            if not stages or stages[-1].plan.on_error == "fail":
                raise
            self._skip(stages[-1], key, stages[-1].record_failure(key, error), (samples, meta))

    def _skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Send a skip in the item's place; raise the error where the stage has `on_error: fail`."""
        if error is not None and stage.plan.on_error == "fail":
            raise error
        stage.count_skipped()
        self._output.send_skip(stage, key, error, header)

    def _push_parts(self, next_stage: int, key: Key, generator: GeneratorType[Any, Any, Any], meta: bytes) -> None:
        """Push the parts that stage `next_stage - 1` yields. A part that fails is the last one."""
        stage, part_count, forced_skips = self._stages[next_stage - 1], 0, self._forced_skips
        parts = stage.iter_parts(key, generator)
        try:
            while True:
                part_key = (*key, part_count)
                if forced_skips and (stage.name, part_key) in forced_skips:
                    self._skip(stage, part_key, forced_skips[stage.name, part_key], (1, meta))
                    part_count += 1
                    break
                try:
                    box = next(parts, None)
                except StageError as error:
                    self._skip(stage, part_key, error, (1, meta))
                    part_count += 1
                    break
                if box is None:
                    break
                part_count += 1
                if box[0] is SKIP:
                    stage.count_skipped()
                    self._output.send_tombstone(part_key, 1, meta)
                else:
                    self.push(part_key, box, 1, meta, next_stage)
        finally:
            generator.close()
        self._output.send_close(key, part_count, meta)

    def push_batch(self, keys: list[Key], values: list[Any], headers: list[ItemHeader]) -> None:
        """Run a list of items through the first stage, which has a `batch`, and each result through the others."""
        stage = self._stages[0]
        if self._forced_skips:
            keys, headers = self._remove_forced_skips(keys, values, headers)
        results = self._call_batch(stage, keys, values) if keys else []
        values.clear()
        results.reverse()
        for key, (samples, meta) in zip(keys, headers, strict=True):
            box = [results.pop()]
            if box[0] is SKIP:
                stage.count_skipped()
                self._output.send_tombstone(key, samples, meta)
            elif isinstance(box[0], StageError):
                self._skip(stage, key, box.pop(), (samples, meta))
            else:
                self.push(key, box, samples, meta, 1)

    def _call_batch(self, stage: StageRunner, keys: list[Key], values: list[Any]) -> list[Any]:
        try:
            return self._calls[0](keys, values)  # type: ignore[no-any-return]
        except StageError as error:
            if stage.plan.on_error == "fail":
                raise
            return [error] * len(keys)

    def _remove_forced_skips(
        self, keys: list[Key], values: list[Any], headers: list[ItemHeader]
    ) -> tuple[list[Key], list[ItemHeader]]:
        stage, forced_skips = self._stages[0], self._forced_skips
        kept = [(stage.name, key) not in forced_skips for key in keys]
        for key, header, is_kept in zip(keys, headers, kept, strict=True):
            if not is_kept:
                self._skip(stage, key, forced_skips[stage.name, key], header)
        values[:] = compress(values, kept)
        return list(compress(keys, kept)), list(compress(headers, kept))


def _with_stage_marker(
    region: ProcessRegion, stage_index: int, call: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """Wrap a call so that the board names the running stage, should the process die or hang in it."""

    def call_marked(key: Any, value: Any) -> Any:
        region[ProcessCounter.CURRENT_STAGE] = stage_index
        try:
            return call(key, value)
        finally:
            region[ProcessCounter.CURRENT_STAGE] = 0

    return call_marked


def _select_call(stage: StageRunner) -> Callable[[Any, Any], Any]:
    """Return how to call a stage: directly, unless its plan asks for retries."""
    plan = stage.plan
    if plan.batch is not None:
        needs_retry = plan.retries or plan.on_error == "skip"
        return partial(call_batch_with_retries, stage) if needs_retry else stage.call_batch
    return partial(call_with_retries, stage) if plan.retries else stage.call
