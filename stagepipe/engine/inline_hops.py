"""Processes of a plan as function calls: the inline engine runs all processes this way, and another engine some.

Runs in the caller's process. `InlineStageProcess` also runs in the workers of such engines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from stagepipe.core import Cursor, Key, RunError, name_error_type, with_error_type
from stagepipe.runtime import (
    Box,
    ItemHeader,
    OrderedGrouping,
    Route,
    StageChain,
    StageError,
    StageRunner,
    format_error,
    format_key,
    format_user_traceback,
)

DeadLetterCallback = Callable[[StageRunner, Key, StageError, bytes], None]
"""Called for a failed, skipped item with its stage, its key, the error and the lineage."""


def make_build_error(stage: str, error: BaseException) -> RunError:
    """Return the error of a stage that cannot be built."""
    message = f"stage {stage}, worker 0: cannot be built: {format_error(error)}"
    run_error = RunError(message, stage=stage, worker=0, trace=format_user_traceback(error))
    return with_error_type(run_error, name_error_type(error))


def make_stage_error(error: StageError) -> RunError:
    """Return the error that ends the run for an error of a stage."""
    item = format_key(error.key)
    run_error = RunError(error.describe(worker=0), stage=error.stage, worker=0, item=item, trace=error.trace)
    return with_error_type(run_error, name_error_type(error.cause))


class InlineOutput:
    """The end of the chain: holds items that are ready to be yielded, as (value, samples)."""

    def __init__(self, on_dead_letter: DeadLetterCallback, ready_items: deque[tuple[Any, int]] | None = None) -> None:
        """`ready_items` is the queue at the end of the chain, shared by earlier outputs."""
        self.ready_items = deque() if ready_items is None else ready_items
        self.on_dead_letter = on_dead_letter

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Take an item, and empty the box."""
        del key, meta
        self.ready_items.append((box.pop(), samples))

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        """Take the message that a stage dropped an item."""

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        """Take the message that an item failed and is skipped."""
        if error is not None:
            self.on_dead_letter(stage, key, error, header[1])

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        """Take the number of parts of an item."""

    def finish_epoch(self) -> None:
        """End the epoch, and pass buffered items on."""

    def start_epoch(self, epoch: int) -> None:
        """Start an epoch, and drop the items of an earlier one."""
        del epoch
        self.ready_items.clear()  # an unfinished epoch may have left items


class DeliveryOutput(InlineOutput):
    """The end of the chain in an inline run."""

    def add(self, value: Any, key: Key) -> bool:
        """Take an item of one sample."""
        del key
        self.ready_items.append((value, 1))
        return True


def absorb_stages(stages: list[StageRunner], downstream: InlineOutput) -> tuple[list[StageRunner], InlineOutput]:
    """Return all stages from `stages` on that an item passes without a buffer in between, and the output after them."""
    if type(downstream) is InlineStageProcess and not downstream.is_batched:
        return [*stages, *downstream.stages], downstream.downstream
    return stages, downstream


class InlineStageProcess(InlineOutput):
    """Consecutive stage processes as a function call. With `batch`, it buffers items until a batch is full."""

    def __init__(self, stages: list[StageRunner], downstream: InlineOutput) -> None:
        super().__init__(downstream.on_dead_letter, downstream.ready_items)
        stages, downstream = absorb_stages(stages, downstream)
        self.stages = stages
        self._chain = StageChain(stages, downstream)
        self.downstream = downstream
        self._batch = stages[0].plan.batch if stages else None
        self.is_batched = self._batch is not None
        self._buffered_items: list[tuple[Key, Any, ItemHeader]] = []
        self._passing_keys: set[Key] = set()
        """The buffered items that pass the stage by. They keep their place in the order."""

    def start_epoch(self, epoch: int) -> None:
        """Start an epoch, and drop the items of an earlier one."""
        self._buffered_items.clear()
        self._passing_keys.clear()
        for stage in self.stages:
            stage.start_epoch(epoch)
        self.downstream.start_epoch(epoch)

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Take an item, and empty the box."""
        if self._batch is None:
            self._chain.push(key, box, samples, meta)
            return
        route = self._chain.choose_route(key, box[0], (samples, meta))
        if route is Route.FAILED:
            return
        if route is Route.AROUND:
            self._passing_keys.add(key)
        self._buffered_items.append((key, box.pop(), (samples, meta)))
        called_count = len(self._buffered_items) - len(self._passing_keys)
        if called_count in {0, self._batch.size}:
            self._run_batch()

    def _run_batch(self) -> None:
        buffered, passing_keys = self._buffered_items, self._passing_keys
        self._buffered_items = []
        self._passing_keys = set()
        if buffered:
            self._chain.push_batch(
                [key for key, _, _ in buffered],
                [value for key, value, _ in buffered if key not in passing_keys],
                [header for _, _, header in buffered],
                {key: value for key, value, _ in buffered if key in passing_keys},
            )

    def finish_epoch(self) -> None:
        """End the epoch, and pass buffered items on."""
        self._run_batch()
        self.downstream.finish_epoch()


class InlineOrderPoint(InlineOutput):
    """An order point as a function call. Leaves arrive in order, and no run resumes from its cursors."""

    def __init__(self, stages: list[StageRunner], downstream: InlineOutput, input_segment: int) -> None:
        super().__init__(downstream.on_dead_letter, downstream.ready_items)
        stages, downstream = absorb_stages(stages, downstream)
        self._stages = stages
        self._grouping = OrderedGrouping(stages[0], input_segment)
        self._adds_plainly = self._grouping.adds_plainly
        self._chain = StageChain(stages[1:], downstream)
        self._downstream = downstream

    def start_epoch(self, epoch: int) -> None:
        """Start an epoch, and drop the items of an earlier one."""
        self._grouping.seek(Cursor(), 0)
        for stage in self._stages:
            stage.start_epoch(epoch)
        self._downstream.start_epoch(epoch)

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Take an item, and empty the box."""
        self._grouping.add_item(key, box, samples, meta)
        if self._grouping.pending_outputs:
            self._push_outputs()

    def add(self, value: Any, key: Key) -> bool:
        """Take an item of one sample. Return False if the item needs `send_item` instead."""
        grouping = self._grouping
        if not self._adds_plainly or len(key) > 1:
            return False
        grouping.add_value(key, value)
        if grouping.pending_outputs:
            self._push_outputs()
        return True

    def _push_outputs(self) -> None:
        while self._grouping.pending_outputs:
            number, box, samples, meta = self._grouping.pending_outputs.popleft()
            self._chain.push((number,), box, samples, meta)

    def finish_epoch(self) -> None:
        """End the epoch, and pass buffered items on."""
        self._grouping.finish_segment()
        self._push_outputs()
        self._downstream.finish_epoch()
