"""One iteration of a pipeline: an epoch or the rest of one, and its position. In the consumer's process."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Self

from stagepipe.core import StagepipeError, fold_internal_frames
from stagepipe.engine.pipeline_state import PipelineState
from stagepipe.engine.position import EpochPosition

if TYPE_CHECKING:
    from stagepipe.engine.engines import EngineRun

_iterators: Final[weakref.WeakSet[EpochIterator]] = weakref.WeakSet()


@atexit.register
def _end_iterations() -> None:
    """End what was left half-way: later, the interpreter has cleared the modules that the ends of generators use."""
    for iterator in list(_iterators):
        iterator.end()


class IterationState:
    """The state of one iteration. The pipeline refers to it and not to the iterator, which refers to the pipeline."""

    def __init__(self, run: EngineRun, start: EpochPosition) -> None:
        """Start before the first item."""
        self.run = run
        self.start = start
        self.items_yielded = 0
        self.has_started = False
        self.has_ended = False

    def position(self) -> EpochPosition:
        """Return the position after the last item yielded; at the end of an epoch, the start of the next one."""
        start = self.start
        if self.has_ended:
            return EpochPosition(start.epoch + 1)
        if not self.items_yielded:
            return start
        return EpochPosition(start.epoch, start.items_yielded + self.items_yielded, self.run.committed_cursor)


class EpochIterator:
    """Iterates over an epoch, or the rest of one. It keeps no reference to the items that it has yielded."""

    def __init__(self, state: IterationState, pipeline_state: PipelineState, pipeline: object) -> None:
        """Seek to the start position at once. The iterator keeps `pipeline` alive."""
        self._state = state
        self._pipeline_state = pipeline_state
        self._pipeline = pipeline
        run = state.run
        start = state.start
        if run.capabilities.resumes_in_mid_epoch and (start.cursor is not None or not start.items_yielded):
            self._generator = run.iter_epoch(start.epoch, start.cursor)
            self._items: Iterator[Any] = self._generator
        else:  # the state is from or for a run without a cursor: compute the yielded items again
            self._generator = run.iter_epoch(start.epoch)
            self._items = itertools.islice(self._generator, start.items_yielded, None)
        _iterators.add(self)

    def end(self) -> None:
        """End the iteration. One that another thread is in goes on: it ends with the process."""
        with contextlib.suppress(ValueError):
            self._generator.close()

    def __iter__(self) -> Self:
        """Return the iterator."""
        return self

    def __next__(self) -> Any:
        """Return the next item. Raises UsageError if a newer iteration has begun, RunError if the run fails."""
        state = self._state
        if state.has_ended:
            raise StopIteration
        self._pipeline_state.require_newest(state)
        if not state.has_started:
            state.has_started = True
            self._pipeline_state.advance_epoch(state.start)
        try:
            item = next(self._items)
        except StopIteration:
            state.has_ended = True
            raise
        except StagepipeError as error:
            raise fold_internal_frames(error) from error.__cause__
        state.items_yielded += 1
        return item
