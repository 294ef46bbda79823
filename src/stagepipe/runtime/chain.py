"""A process's stages, one after the other: what is fused costs a call. In workers and inline.

An item is passed in a box (a list of one) that is emptied by whoever takes it, so that nobody up the stack keeps it
alive: what nobody holds any more travels on without a copy, and its block is free at once.

An item whose stage fails never goes on. It ends the run, or with `on_error: skip` a skip goes on in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from itertools import compress
from types import GeneratorType
from typing import Any, Protocol

from stagepipe.core import SKIP, Key
from stagepipe.runtime.again import call_again, call_many_again
from stagepipe.runtime.failures import CannotTravelError, WorkerDiedError
from stagepipe.runtime.stage import Stage, StageError
from stagepipe.timing import Region, Word

Box = list[Any]
Head = tuple[int, bytes]
"""What an item brings along: samples and meta."""

Imposed = dict[tuple[str, Key], StageError | None]
"""What is skipped and not tried: an earlier time it was, or (then with the error) it has killed too many workers."""


def imposed_on(stages: Container[str], skips: Iterable[Sequence[Any]]) -> Imposed:
    """Those of a seek's skips that are of these stages: (stage, key), or (stage, key, error, attempts)."""
    imposed: Imposed = {}
    for stage, key, *why in skips:
        if stage in stages:
            error = StageError(stage, tuple(key), WorkerDiedError(why[0]), why[1]) if why else None
            imposed[stage, tuple(key)] = error
    return imposed


class Out(Protocol):
    """Where a chain's results go: a hop, or inline the next process's chain."""

    def item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """An item; the box is left empty."""

    def dropped(self, key: Key, samples: int, meta: bytes) -> None:
        """An item that a stage dropped."""

    def skipped(self, stage: Stage, key: Key, error: StageError | None, head: Head) -> None:
        """An item that failed at a stage; without an error, one that must be skipped because it was before."""

    def close(self, key: Key, count: int, meta: bytes) -> None:
        """A generator gave `count` parts for `key`."""


class Chain:
    """The stages from some point on, and where their results go."""

    def __init__(self, stages: list[Stage], out: Out, region: Region | None = None) -> None:
        """`stages` may be empty: then all goes straight to `out`. `region`: where to say which of them is at work."""
        self._stages, self._out = stages, out
        self._calls = [_call_of(stage) for stage in stages]
        if region is not None and region.stages > 1:
            first = region.stages - len(stages)
            self._calls = [_marked(region, first + at, call) for at, call in enumerate(self._calls)]
        self._imposed: Imposed = {}

    def impose(self, skips: Iterable[Sequence[Any]]) -> None:
        """From here on what `skips` names is skipped, and not tried; see `imposed_on`."""
        self._imposed = imposed_on({stage.name for stage in self._stages}, skips)

    def push(self, key: Key, box: Box, samples: int, meta: bytes, at: int = 0) -> None:
        """Run an item through the stages from number `at` on."""
        stages, calls, imposed = self._stages, self._calls, self._imposed
        while at < len(stages):
            stage = stages[at]
            if imposed and (stage.name, key) in imposed:
                self._skip(stage, key, imposed[stage.name, key], (samples, meta))
                return
            try:
                result = calls[at](key, box)
            except StageError as error:
                self._skip(stage, key, error, (samples, meta))
                return
            at += 1
            if type(result) is GeneratorType:
                self._generate(at, key, result, meta)
                return
            if result is SKIP:
                stage.skipped()
                self._out.dropped(key, samples, meta)
                return
            box.append(result)
            del result
        try:
            self._out.item(key, box, samples, meta)
        except CannotTravelError as error:
            if not stages or stages[-1].plan.on_error == "fail":
                raise
            self._skip(stages[-1], key, stages[-1].failed(key, error), (samples, meta))

    def _skip(self, stage: Stage, key: Key, error: StageError | None, head: Head) -> None:
        """Let the others know that there is nothing in the item's place; or fail."""
        if error is not None and stage.plan.on_error == "fail":
            raise error
        stage.skipped()
        self._out.skipped(stage, key, error, head)

    def _generate(self, following: int, key: Key, generator: GeneratorType[Any, Any, Any], meta: bytes) -> None:
        """The parts that the stage before number `following` gives. Behind one that fails there are no more."""
        stage, count, imposed = self._stages[following - 1], 0, self._imposed
        parts = stage.parts(key, generator)
        try:
            while True:
                part = (*key, count)
                if imposed and (stage.name, part) in imposed:
                    self._skip(stage, part, imposed[stage.name, part], (1, meta))
                    count += 1
                    break
                try:
                    box = next(parts, None)
                except StageError as error:
                    self._skip(stage, part, error, (1, meta))
                    count += 1
                    break
                if box is None:
                    break
                count += 1
                if box[0] is SKIP:
                    stage.skipped()
                    self._out.dropped(part, 1, meta)
                else:
                    self.push(part, box, 1, meta, following)
        finally:
            generator.close()
        self._out.close(key, count, meta)

    def push_many(self, keys: list[Key], values: list[Any], heads: list[Head]) -> None:
        """Run a list of items through the first stage (which has a `batch`), and each result through the others."""
        stage = self._stages[0]
        if self._imposed:
            keys, heads = self._without_imposed(keys, values, heads)
        results = self._called_many(stage, keys, values) if keys else []
        values.clear()
        results.reverse()
        for key, (samples, meta) in zip(keys, heads, strict=True):
            box = [results.pop()]
            if box[0] is SKIP:
                stage.skipped()
                self._out.dropped(key, samples, meta)
            elif isinstance(box[0], StageError):
                self._skip(stage, key, box.pop(), (samples, meta))
            else:
                self.push(key, box, samples, meta, 1)

    def _called_many(self, stage: Stage, keys: list[Key], values: list[Any]) -> list[Any]:
        try:
            return self._calls[0](keys, values)  # type: ignore[no-any-return]
        except StageError as error:
            if stage.plan.on_error == "fail":
                raise
            return [error] * len(keys)

    def _without_imposed(self, keys: list[Key], values: list[Any], heads: list[Head]) -> tuple[list[Key], list[Head]]:
        stage, imposed = self._stages[0], self._imposed
        wanted = [(stage.name, key) not in imposed for key in keys]
        for key, head, is_wanted in zip(keys, heads, wanted, strict=True):
            if not is_wanted:
                self._skip(stage, key, imposed[stage.name, key], head)
        values[:] = compress(values, wanted)
        return list(compress(keys, wanted)), list(compress(heads, wanted))


def _marked(region: Region, number: int, call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The call, with the stage's number on the board meanwhile: for whoever asks why the process died or hangs."""

    def marked(key: Any, value: Any) -> Any:
        region[Word.AT_STAGE] = number
        try:
            return call(key, value)
        finally:
            region[Word.AT_STAGE] = 0

    return marked


def _call_of(stage: Stage) -> Callable[[Any, Any], Any]:
    """How a stage is called: straight, unless a failed call is to be made again."""
    plan = stage.plan
    if plan.batch is not None:
        again = plan.retries or plan.on_error == "skip"
        return partial(call_many_again, stage) if again else stage.call_many
    return partial(call_again, stage) if plan.retries else stage.call
