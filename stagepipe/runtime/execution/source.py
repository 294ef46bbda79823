"""The source as the first stage of its process: it reads item by item and pushes them into the stages fused to it.

In the source's process and inline.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from stagepipe.core import SKIP, Key, StreamState
from stagepipe.runtime.execution.chain import Box, ChainOutput
from stagepipe.runtime.execution.retry import call_with_retries
from stagepipe.runtime.execution.source_reader import END_OF_SOURCE, SourceReader
from stagepipe.runtime.execution.stage import StageRunner
from stagepipe.runtime.execution.traced_stage import make_chain
from stagepipe.runtime.protocol import ForcedSkip
from stagepipe.timing import ProcessRegion


class SourceRunner:
    """Reads items and pushes them into the stages fused to the source.

    Only an indexed source can read an item again, or continue after one that fails.
    """

    def __init__(
        self, reader: SourceReader, stages: list[StageRunner], output: ChainOutput, region: ProcessRegion | None = None
    ) -> None:
        """`reader` reads the target of `stages[0]`, the source; the other stages are fused to it."""
        self._reader = reader
        self._output = output
        self._stage = stages[0]
        self._stage.refuses_none = self._stage.refuses_none and not reader.passes_none
        self._stage.skips_failures = self._stage.skips_failures and reader.is_indexed
        is_retried = reader.is_indexed and self._stage.plan.retries
        self._chain = make_chain(stages, output, region, self._read_with_retries if is_retried else self._read)

    def seek(
        self,
        epoch: int,
        item: int,
        forced_skips: Iterable[ForcedSkip] = (),
        stream_state: StreamState | None = None,
    ) -> None:
        """Go to item `item` of an epoch. `forced_skips` are skipped; see `StageChain.set_forced_skips`.

        A stream that saves its state is read on from `stream_state`.
        """
        self._chain.set_forced_skips(forced_skips)
        self._stage.seed_epoch()
        self._reader.seek(epoch, item, self._stage.seed_source_item, stream_state)

    def step(self, item: int) -> bool:
        """Read item `item`, which is the next, and push it into the chain; False at the end of the epoch."""
        key = (item,)
        result = self._chain.run_stage(0, key, [], (1, b""))
        if result is END_OF_SOURCE:
            return False
        if result is not SKIP:
            box = [result]
            del result
            self._chain.push(key, box, self._reader.item_samples, b"", 1)
        return True

    def step_chunk(self, item: int, count: int) -> int:
        """Send up to `count` items from `item` on as one chunk; return how many, 0 where they must go one by one.

        Only for a source alone in its process. The caller knows that no item of them is to be skipped.
        """
        stage = self._stage
        chunk = stage.run_timed((item,), partial(self._reader.read_chunk, item, count))
        if chunk is None:
            return 0
        read_items = len(chunk.indices)
        stage.count_items(item, read_items)
        self._output.send_item((item,), [chunk], read_items, b"")
        return read_items

    def _read(self, key: Key, _: Box) -> Any:
        stage, reader = self._stage, self._reader
        if reader.is_indexed and reader.may_draw:  # a stream seeds each item itself, those that it discards too
            stage.seed_item(key)
        result = stage.run_timed(key, partial(reader.read, key[0]))
        if result is None and stage.refuses_none:
            raise stage.make_none_error(key, "returned" if reader.is_indexed else "yielded")
        if result is not END_OF_SOURCE:
            stage.count_item(key)
        return result

    def _read_with_retries(self, key: Key, box: Box) -> Any:
        return call_with_retries(self._stage, partial(self._read, key, box), box, list)
