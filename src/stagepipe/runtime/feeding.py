"""The source as a stage: item by item into the chain behind it, tried again or skipped where reading one fails.

In the source's process and inline.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from stagepipe.core import SKIP, Key
from stagepipe.runtime.chain import Box, Chain, Imposed, Out, imposed_on
from stagepipe.runtime.reading import SourceReader
from stagepipe.runtime.stage import Stage, StageError
from stagepipe.timing import Region


class Feed:
    """Gives the source's items to what is fused behind it. An indexed source can go on behind an item that fails."""

    def __init__(self, reader: SourceReader, stages: list[Stage], out: Out, region: Region | None = None) -> None:
        """`reader` reads what the first of `stages` has built."""
        self._reader, self._out = reader, out
        self._stage, self._chain = stages[0], Chain(stages[1:], out, region)
        self._imposed: Imposed = {}

    def enter(self, epoch: int, item: int, imposed: Sequence[Sequence[Any]] = ()) -> None:
        """Go to item `item` of an epoch; what is `imposed` is skipped, see `Chain.impose`."""
        self._imposed = imposed_on({self._stage.name}, imposed)
        self._chain.impose(imposed)
        self._stage.seed_epoch()
        self._reader.seek(epoch, item)

    def step(self, at: int) -> bool:
        """Send item `at`, which is the next, on its way; False if there is none."""
        stage, key = self._stage, (at,)
        box: Box = []
        if self._imposed and (stage.name, key) in self._imposed:
            self._skip(key, self._imposed[stage.name, key])
            return True
        try:
            (stage.seed if self._reader.indexed else stage.at)(key)
            if not stage.timed(key, partial(self._reader.read, box)):
                return False
        except StageError as error:
            failed = self._read_again(key, box, error)
            if failed is not None:
                self._skip(key, failed)
                return True
        stage.count(key)
        if box[0] is SKIP:
            stage.skipped()
            self._out.dropped(key, 1, b"")
        else:
            self._chain.push(key, box, self._reader.samples, b"")
        return True

    def _read_again(self, key: Key, box: Box, error: StageError) -> StageError | None:
        """Try as often as the plan has it: None where that went well, the last error where the item is skipped."""
        stage = self._stage
        while self._reader.indexed and error.attempts <= (stage.plan.retries or 0):
            stage.retried()
            stage.seed(key)
            try:
                stage.timed(key, partial(self._reader.read, box))
            except StageError as again:
                again.attempts = error.attempts + 1
                error = again
            else:
                return None
        if not self._reader.indexed or stage.plan.on_error == "fail":
            raise error
        return error

    def _skip(self, key: Key, error: StageError | None) -> None:
        self._reader.pass_over()
        self._stage.skipped()
        self._out.skipped(self._stage, key, error, (1, b""))
