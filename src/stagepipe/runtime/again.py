"""A failed call made again: with the same seeds, and with the input as it was. In workers and inline.

A function may have changed its input before it raised, so the input is kept before the first call: pickled, its
buffers apart. Those that nobody can write into (what came through shared memory) are kept as they are, not copied.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Generator
from functools import partial
from types import GeneratorType
from typing import Any

from stagepipe.core import Key
from stagepipe.runtime.stage import Stage, StageError

Remake = Callable[[], Any]
"""Gives the input as it was, each time anew."""


def kept(value: Any) -> Remake | None:
    """How to have `value` as it is now again; None where it can be neither pickled nor copied.

    >>> box = [1]
    >>> again = kept(box)
    >>> box.append(2)
    >>> again()
    [1]
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
    except Exception:  # noqa: BLE001 - whatever its own pickling raises
        return _copied(value)
    bare = [view if view.readonly else bytes(view) for view in views]
    del views, buffers
    return lambda: pickle.loads(data, buffers=[bytearray(b) if isinstance(b, bytes) else b for b in bare])


def _copied(value: Any) -> Remake | None:
    try:
        copied = copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever its own copying raises
        return None
    return partial(copy.deepcopy, copied)


def call_again(stage: Stage, key: Key, box: list[Any]) -> Any:
    """`stage.call`, tried again as often as its plan has it. A generator comes with its first part made."""
    remake = kept(box[0])
    attempts = 1
    while True:
        try:
            result = stage.call(key, box)
            return _begun(stage, key, result) if type(result) is GeneratorType else result
        except StageError as error:
            error.attempts = attempts
            if remake is None or attempts > (stage.plan.retries or 0):
                raise
        attempts += 1
        stage.retried()
        box[:] = [remake()]


def _begun(stage: Stage, key: Key, generator: GeneratorType[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The same generator, whose first part is made: until then it can be begun again."""
    try:
        first = [stage.timed((*key, 0), partial(next, generator))]
    except StopIteration:
        first = []
    return _rest(first, generator)


def _rest(first: list[Any], generator: GeneratorType[Any, Any, Any]) -> Generator[Any, Any, Any]:
    try:
        if first:
            yield first.pop()
            yield from generator
    finally:
        generator.close()


def call_many_again(stage: Stage, keys: list[Key], values: list[Any]) -> list[Any]:
    """`stage.call_many`, tried again as often as its plan has it.

    What still fails is tried one by one where failed items are skipped, so that only the guilty are: a StageError
    stands in their place.
    """
    plan = stage.plan
    one_by_one = plan.on_error == "skip" and len(keys) > 1
    remake = kept(values) if one_by_one or plan.retries else None
    attempts = 1
    while True:
        try:
            return stage.call_many(keys, values)
        except StageError as error:
            error.attempts = attempts
            if remake is None:
                raise
            if attempts > (plan.retries or 0):
                if not one_by_one:
                    raise
                break
        attempts += 1
        stage.retried()
        values[:] = remake()
    return [_alone(stage, key, value, attempts + 1) for key, value in zip(keys, remake(), strict=True)]


def _alone(stage: Stage, key: Key, value: Any, attempts: int) -> Any:
    try:
        return stage.call_many([key], [value])[0]
    except StageError as error:
        error.attempts = attempts
        return error
