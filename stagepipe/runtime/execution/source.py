"""The source as a stage: it reads item by item, and retries or skips an item that cannot be read.

In the source's process and inline.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stagepipe.core import SKIP, Key
from stagepipe.runtime.execution.chain import Box, ChainOutput, ForcedSkips, StageChain, select_forced_skips
from stagepipe.runtime.execution.source_reader import SourceReader
from stagepipe.runtime.execution.stage import StageError, StageRunner
from stagepipe.runtime.protocol import ForcedSkip
from stagepipe.timing import ProcessRegion


class SourceRunner:
    """Reads items and pushes them into the stages fused to the source.

    Only an indexed source can continue after an item that fails.
    """

    def __init__(
        self, reader: SourceReader, stages: list[StageRunner], output: ChainOutput, region: ProcessRegion | None = None
    ) -> None:
        """`reader` reads the target of `stages[0]`, the source; the other stages are fused to it."""
        self._reader = reader
        self._output = output
        self._stage = stages[0]
        self._chain = StageChain(stages[1:], output, region)
        self._forced_skips: ForcedSkips = {}

    def seek(self, epoch: int, item: int, forced_skips: Sequence[ForcedSkip] = ()) -> None:
        """Go to item `item` of an epoch. `forced_skips` are skipped; see `StageChain.set_forced_skips`."""
        self._forced_skips = select_forced_skips({self._stage.name}, forced_skips)
        self._chain.set_forced_skips(forced_skips)
        self._stage.seed_epoch()
        self._reader.seek(epoch, item)

    def step(self, item: int) -> bool:
        """Read item `item`, which is the next, and push it into the chain; False at the end of the epoch."""
        stage, key = self._stage, (item,)
        box: Box = []
        if self._forced_skips and (stage.name, key) in self._forced_skips:
            self._skip(key, self._forced_skips[stage.name, key])
            return True
        try:
            (stage.seed_item if self._reader.is_indexed else stage.set_context)(key)
            if not stage.run_timed(key, partial(self._reader.read, box)):
                return False
        except StageError as error:
            last_error = self._retry_read(key, box, error)
            if last_error is not None:
                self._skip(key, last_error)
                return True
        stage.count_item(key)
        if box[0] is SKIP:
            stage.count_skipped()
            self._output.send_tombstone(key, 1, b"")
        else:
            self._chain.push(key, box, self._reader.item_samples, b"")
        return True

    def _retry_read(self, key: Key, box: Box, error: StageError) -> StageError | None:
        """Repeat the read as often as the plan allows. Return None on success, the last error for a skip."""
        stage = self._stage
        while self._reader.is_indexed and error.attempts <= (stage.plan.retries or 0):
            stage.count_retry()
            stage.seed_item(key)
            try:
                stage.run_timed(key, partial(self._reader.read, box))
            except StageError as retry_error:
                retry_error.attempts = error.attempts + 1
                error = retry_error
            else:
                return None
        if not self._reader.is_indexed or stage.plan.on_error == "fail":
            raise error
        return error

    def _skip(self, key: Key, error: StageError | None) -> None:
        self._reader.skip_item()
        self._stage.count_skipped()
        self._output.send_skip(self._stage, key, error, (1, b""))
