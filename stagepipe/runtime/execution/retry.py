"""Retries: a failed call is repeated with the same seeds and the same input. In workers and inline.

A function may change its input before it raises, so the input is saved before the first call: as a pickle with
out-of-band buffers. Read-only buffers (inputs in shared memory) are kept by reference, not copied.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Generator
from functools import partial
from time import perf_counter_ns
from types import GeneratorType
from typing import Any

from stagepipe.core import Key
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.runtime.execution.stage_error import StageError

RestoreInput = Callable[[], Any]
"""Returns a fresh copy of the input at each call."""


def snapshot_input(value: Any) -> RestoreInput | None:
    """Save `value` and return a function that restores it; None where it can be neither pickled nor copied.

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

    `attempt` takes its input from the list `inputs`, which is filled again before it is repeated; where
    `restore_inputs` is None, that cannot be done and there is one attempt. Raises the last StageError, with the number
    of attempts.
    """
    attempts = 1
    while True:
        started_ns = perf_counter_ns()
        try:
            return attempt()
        except StageError as error:
            error.attempts = attempts
            if restore_inputs is None or error.is_mistake or attempts > (stage.plan.retries or 0):
                raise
        attempts += 1
        stage.count_retry(perf_counter_ns() - started_ns)
        inputs[:] = restore_inputs()


def call_stage_with_retries(stage: StageRunner, key: Key, box: list[Any]) -> Any:
    """`stage.call` with retries. A generator is returned after its first part."""

    def attempt() -> Any:
        result = stage.call(key, box)
        return _start_generator(stage, key, result) if type(result) is GeneratorType else result

    return call_with_retries(stage, attempt, box, snapshot_input(box))


def matches_with_retries(stage: StageRunner, key: Key, value: Any) -> bool:
    """`stage.matches` with retries."""
    if not stage.plan.retries:
        return stage.matches(key, value)
    is_match: bool = call_with_retries(stage, lambda: stage.matches(key, value), [], list)
    return is_match


def _start_generator(stage: StageRunner, key: Key, generator: GeneratorType[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Produce the generator's first part now: an error in it can still be retried."""
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


def call_batch_with_retries(stage: StageRunner, keys: list[Key], values: list[Any]) -> list[Any]:
    """`stage.call_batch` with retries.

    Where failed items are skipped, a batch that still fails is tried item by item, so that only the items that fail are
    skipped. A StageError stands in the place of each.
    """
    one_by_one = stage.skips_failures and len(keys) > 1
    restore_values = snapshot_input(values) if one_by_one or stage.plan.retries else None
    try:
        results: list[Any] = call_with_retries(stage, partial(stage.call_batch, keys, values), values, restore_values)
    except StageError as error:
        if restore_values is None or error.is_mistake or not one_by_one:
            raise
        attempts = error.attempts + 1
    else:
        return results
    return [_call_single_item(stage, key, value, attempts) for key, value in zip(keys, restore_values(), strict=True)]


def _call_single_item(stage: StageRunner, key: Key, value: Any, attempts: int) -> Any:
    try:
        return stage.call_batch([key], [value])[0]
    except StageError as error:
        if error.is_mistake:
            raise
        error.attempts = attempts
        return error
