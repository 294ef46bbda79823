"""The stages of a run that is traced, and their chain: each call is in the trace of their process. In workers.

A run without a trace uses `StageRunner` and `StageChain` themselves, and pays nothing for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from stagepipe.core import Key
from stagepipe.runtime.execution.chain import Box, ChainOutput, ItemHeader, StageCall, StageChain
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.timing import ProcessRegion, TraceBuffer, TraceKind

_ITEM = int(TraceKind.ITEM)
_STAGE = int(TraceKind.STAGE)


class TracedStageRunner(StageRunner):
    """A stage that traces each call of its target."""

    def __init__(self, trace: TraceBuffer, *args: Any) -> None:
        """`args`: those of `StageRunner`."""
        super().__init__(*args)
        self.trace = trace

    def _run_traced(self, key: Key, function: Callable[[], Any], count: int = 1) -> Any:
        begin_ns = perf_counter_ns()
        is_failed = True
        try:
            result = function()
            is_failed = False
        finally:
            index = self.plan.index
            self.trace.add(_STAGE, begin_ns, perf_counter_ns(), key, index, 0, 0, count, is_failed=is_failed)
        return result

    def call(self, key: Key, box: list[Any]) -> Any:
        """`StageRunner.call`, traced."""
        begin_ns = perf_counter_ns()
        try:
            result = super().call(key, box)
        except BaseException:
            self.trace.add(_STAGE, begin_ns, perf_counter_ns(), key, self.plan.index, is_failed=True)
            raise
        self.trace.add(_STAGE, begin_ns, perf_counter_ns(), key, self.plan.index)
        return result

    def make_item_call(self) -> Callable[[Key, Any], Any]:
        """`StageRunner.make_item_call`, traced."""
        call_item = super().make_item_call()
        return lambda key, value: self._run_traced(key, lambda: call_item(key, value))

    def call_together(self, keys: list[Key], values: list[Any]) -> list[Any] | None:
        """`StageRunner.call_together`, traced."""
        call = super().call_together
        return self._run_traced(keys[0], lambda: call(keys, values), len(keys))  # type: ignore[no-any-return]

    def call_batch(self, keys: list[Key], values: list[Any]) -> list[Any]:
        """`StageRunner.call_batch`, traced."""
        call = super().call_batch
        return self._run_traced(keys[0], lambda: call(keys, values), len(keys))  # type: ignore[no-any-return]

    def iter_parts(self, key: Key, generator: Iterator[Any]) -> Iterator[list[Any]]:
        """`StageRunner.iter_parts`, each part traced."""
        parts = super().iter_parts(key, generator)
        part = 0
        while True:
            box = self._run_traced((*key, part), lambda: next(parts, None))
            if box is None:
                return
            yield box
            part += 1

    def run_timed(self, key: Key, function: Callable[[], Any]) -> Any:
        """`StageRunner.run_timed`, traced. The item whose source it reads begins here."""
        run = super().run_timed
        self.trace.begin_item(key, perf_counter_ns())
        return self._run_traced(key, lambda: run(key, function))


class TracedStageChain(StageChain):
    """A chain that traces each item, from its receipt until what became of it is sent."""

    def __init__(self, trace: TraceBuffer, *args: Any) -> None:
        """`args`: those of `StageChain`."""
        super().__init__(*args)
        self._trace = trace

    def push(self, key: Key, box: Box, samples: int, meta: bytes, first_stage: int = 0) -> None:
        """`StageChain.push`, traced."""
        begin_ns = self._trace.take_item_begin(key)
        try:
            super().push(key, box, samples, meta, first_stage)
        finally:
            self._trace.add(_ITEM, begin_ns, perf_counter_ns(), key)

    def push_batch(
        self,
        keys: list[Key],
        values: list[Any],
        headers: list[ItemHeader],
        passing_items: dict[Key, Any] | None = None,
    ) -> None:
        """`StageChain.push_batch`: its items begin after their common call."""
        self._trace.begin_item((), 0)
        super().push_batch(keys, values, headers, passing_items)


def make_stage(trace: TraceBuffer | None, *args: Any) -> StageRunner:
    """Return a `StageRunner` with these arguments, one that is traced if there is a trace."""
    return StageRunner(*args) if trace is None else TracedStageRunner(trace, *args)


def make_chain(
    stages: list[StageRunner],
    output: ChainOutput,
    region: ProcessRegion | None = None,
    first_call: StageCall | None = None,
) -> StageChain:
    """Return a `StageChain`, one that is traced if its stages are."""
    if stages and isinstance(stages[0], TracedStageRunner):
        return TracedStageChain(stages[0].trace, stages, output, region, first_call)
    return StageChain(stages, output, region, first_call)
