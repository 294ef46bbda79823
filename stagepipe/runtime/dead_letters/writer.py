"""Makes dead letters in the process in which the item failed: in a worker, or inline in the caller's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagepipe.core import Key
from stagepipe.plan import Shard
from stagepipe.runtime.execution import StageError, StageRunner
from stagepipe.runtime.protocol import DeadLetterEvent, format_key, read_only_hint, unpack_lineage, unpack_source_items


class DeadLetterWriter:
    """Makes the dead letters of one process and sends them to the supervisor's store."""

    def __init__(
        self, *, process_index: int, worker: int, first_stage_name: str, shard: Shard, any_order: bool
    ) -> None:
        """`first_stage_name`: of the process. `shard` and `any_order` are the plan's."""
        self._process_index = process_index
        self._worker = worker
        self._first_stage_name = first_stage_name
        self._shard = shard
        self._any_order = any_order

    def make_letter(
        self, stage: StageRunner, key: Key, error: StageError, lineage: bytes, generation: int
    ) -> DeadLetterEvent:
        """The letter of an item that failed at `stage`. `lineage` is b"" before the first order point."""
        return DeadLetterEvent(
            process=self._process_index,
            stage=stage.label,
            worker=self._worker,
            key=key,
            item=format_key(stage.global_key(key)),
            error=f"{error}{read_only_hint(error.cause, self._first_stage_name)}",
            trace=error.trace,
            attempts=error.attempts,
            generation=generation,
            epoch=stage.epoch,
            source_items=[self._shard.to_item_number(item) for item in self._get_source_items(key, lineage)],
        )

    def write(  # noqa: PLR0917 - a letter needs all of them
        self,
        send_event: Callable[[DeadLetterEvent], None],
        stage: StageRunner,
        key: Key,
        error: StageError,
        lineage: bytes,
        generation: int,
    ) -> None:
        """Make a letter, count it, and pass it to `send_event`."""
        stage.count_dead_letter()
        send_event(self.make_letter(stage, key, error, lineage, generation))

    def _get_source_items(self, key: Key, lineage: bytes) -> Sequence[int]:
        if not lineage:
            return [key[0]]
        if self._any_order:
            return unpack_source_items(lineage)
        ordered_lineage = unpack_lineage(lineage)
        return range(ordered_lineage.source_begin, ordered_lineage.source_end)
