"""A process's stages, one after the other: what is fused costs a call. In workers and inline.

An item is passed in a box (a list of one) that is emptied by whoever takes it, so that nobody up the stack keeps it
alive: what nobody holds any more travels on without a copy, and its block is free at once.
"""

from __future__ import annotations

from types import GeneratorType
from typing import Any, Protocol

from stagepipe.core import SKIP, Key
from stagepipe.runtime.stage import Stage

Box = list[Any]


class Out(Protocol):
    """Where a chain's results go: a hop, or inline the next process's chain."""

    def item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """An item; the box is left empty."""

    def dropped(self, key: Key, samples: int, meta: bytes) -> None:
        """An item that a stage dropped."""

    def close(self, key: Key, count: int, meta: bytes) -> None:
        """A generator gave `count` parts for `key`."""


class Chain:
    """The stages from some point on, and where their results go."""

    def __init__(self, stages: list[Stage], out: Out) -> None:
        """`stages` may be empty: then all goes straight to `out`."""
        self._stages, self._out = stages, out

    def push(self, key: Key, box: Box, samples: int, meta: bytes, at: int = 0) -> None:
        """Run an item through the stages from number `at` on."""
        stages = self._stages
        while at < len(stages):
            stage = stages[at]
            result = stage.call(key, box)
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
        self._out.item(key, box, samples, meta)

    def _generate(self, following: int, key: Key, generator: GeneratorType[Any, Any, Any], meta: bytes) -> None:
        """The parts that the stage before number `following` gives."""
        stage, count = self._stages[following - 1], 0
        try:
            for box in stage.parts(key, generator):
                part = (*key, count)
                count += 1
                if box[0] is SKIP:
                    stage.skipped()
                    self._out.dropped(part, 1, meta)
                else:
                    self.push(part, box, 1, meta, following)
        finally:
            generator.close()
        self._out.close(key, count, meta)

    def push_many(self, keys: list[Key], values: list[Any], heads: list[tuple[int, bytes]]) -> None:
        """Run a list of items through the first stage (which has a `batch`), and each result through the others."""
        stage = self._stages[0]
        results = stage.call_many(keys, values)
        values.clear()
        results.reverse()
        for key, (samples, meta) in zip(keys, heads, strict=True):
            box = [results.pop()]
            if box[0] is SKIP:
                stage.skipped()
                self._out.dropped(key, samples, meta)
            else:
                self.push(key, box, samples, meta, 1)
