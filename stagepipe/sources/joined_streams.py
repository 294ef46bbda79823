"""`JoinedStream`: several sources as one stream, if one of them is a stream, and the order of their turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Final, Protocol

import numpy as np

from stagepipe.core import SourceFiles, StreamPosition, is_stream, join_files
from stagepipe.sources.dataset_source import SeededStream, begin_stream, describe_stream_files
from stagepipe.sources.joined_order import IntArray, PartOrder, Phase, SourcePart, StopMode, derive_part_seed


class Turns(Protocol):
    """Draws the number of the part for the next item."""

    def draw(self) -> int:
        """Return the part of the next turn."""

    def drop(self, part: int) -> None:
        """Leave a part out from now on."""

    def take_state(self) -> dict[str, Any]:
        """Return the position as plain JSON."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue at a position."""


class SequentialTurns:
    """One part after the other."""

    def __init__(self) -> None:
        self._part = 0

    def draw(self) -> int:
        """Return the first part that has not ended."""
        return self._part

    def drop(self, part: int) -> None:
        """Go on to the part after it."""
        self._part = part + 1

    def take_state(self) -> dict[str, Any]:
        """Return the position."""
        return {"part": self._part}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self._part = state["part"]


class WeightedTurns:
    """Random turns in proportion to the weights, drawn from (seed, epoch) in blocks, like in a `MixOrder`."""

    def __init__(self, weights: Sequence[Fraction], epoch: int, seed: int) -> None:
        """Raises ValueError if the weights are too far apart."""
        self._weights = weights
        self._epoch = epoch
        self._seed = seed
        self._dropped: list[int] = []
        self._position = 0
        self._phase = self._make_phase()
        self._block: tuple[int, list[int]] = (-1, [])

    def draw(self) -> int:
        """Return the part of the next turn."""
        number, position = divmod(self._position, self._phase.block_size)
        if self._block[0] != number:
            parts: IntArray = self._phase.draw_block(number, self._epoch, self._seed, len(self._dropped))
            self._block = (number, parts.tolist())
        self._position += 1
        return self._block[1][position]

    def drop(self, part: int) -> None:
        """Distribute the share of a part among the others."""
        self.load_state({"dropped": [*self._dropped, part], "position": 0})

    def take_state(self) -> dict[str, Any]:
        """Return the position."""
        return {"dropped": list(self._dropped), "position": self._position}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self._dropped = list(state["dropped"])
        self._position = state["position"]
        self._phase = self._make_phase()
        self._block = (-1, [])

    def _make_phase(self) -> Phase:
        left = [Fraction(0) if part in self._dropped else weight for part, weight in enumerate(self._weights)]
        phase = Phase(left, 0, np.zeros(len(left), np.int64))
        phase.length = sys.maxsize
        return phase


_END: Final = object()


class JoinedStream(SeededStream):
    """The items of several sources, each map-style or a stream, in the turns of `make_turns`.

    The source's process reads all of them. The state includes all parts if every stream saves its state; otherwise a
    resume reads the sources from their start.
    """

    def __init__(
        self, sources: Sequence[Any], label: str, make_turns: Callable[[int, int], Turns], until: StopMode
    ) -> None:
        """`make_turns` takes epoch and seed. Raises TypeError for a part that can be read only once."""
        self._parts = [
            (StreamedPart if is_stream(source) else SourcePart)(source, f"{label}: sources[{index}]")
            for index, source in enumerate(sources)
        ]
        self._make_turns = make_turns
        self._until = until
        self._epoch_and_seed = (0, 0)

    def describe_files(self) -> SourceFiles | None:
        """Return the identity of the files of all parts that know theirs."""
        return join_files([part.describe_files() for part in self._parts])

    def begin(self, epoch: int, seed: int) -> None:
        """Start an epoch."""
        self._epoch_and_seed = (epoch, seed)

    def __iter__(self) -> Iterator[Any]:
        epoch, seed = self._epoch_and_seed
        readers = [
            StreamReader(part, number, epoch, seed)
            if isinstance(part, StreamedPart)
            else IndexReader(part, number, epoch, seed)
            for number, part in enumerate(self._parts)
        ]
        is_saved = all(reader.is_saved for reader in readers)
        iterator_class = StatefulJoinedIterator if is_saved else JoinedIterator
        return iterator_class(readers, self._make_turns(epoch, seed), self._until)


class JoinedIterator(Iterator[Any]):
    """The items of an epoch."""

    def __init__(self, readers: Sequence[IndexReader | StreamReader], turns: Turns, until: StopMode) -> None:
        self._readers = readers
        self._turns = turns
        self._until = until
        self._ended: set[int] = set()
        self._is_finished = False

    def __next__(self) -> Any:
        while not self._is_finished:
            number = self._turns.draw()
            reader = self._readers[number]
            item = reader.read()
            if item is not _END:
                return item
            self._ended.add(number)
            self._is_finished = self._until == "first_exhausted" or len(self._ended) == len(self._readers)
            if self._until == "each_once" and not self._is_finished:
                self._turns.drop(number)
            elif not self._is_finished:
                return reader.read_again()
        raise StopIteration


class StatefulJoinedIterator(JoinedIterator):
    """The items of an epoch, with the state of all parts."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the turns and in each part."""
        return {
            "turns": self._turns.take_state(),
            "ended": sorted(self._ended),
            "finished": self._is_finished,
            "parts": [reader.take_state() for reader in self._readers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self._turns.load_state(state["turns"])
        self._ended = set(state["ended"])
        self._is_finished = state["finished"]
        for reader, part in zip(self._readers, state["parts"], strict=True):
            reader.load_state(part)


class IndexReader:
    """Reads a map-style part in its order."""

    is_saved = True

    def __init__(self, part: SourcePart, number: int, epoch: int, seed: int) -> None:
        """Start an epoch of the part with this number."""
        self._part = part
        self._order = PartOrder(part, number)
        self._order.begin(epoch, derive_part_seed(seed, epoch, "mix"))
        self._position = 0
        self._end = self._order.length

    def read(self) -> Any:
        """Return the next item; `_END` at the end of a pass."""
        if self._position == self._end:
            return _END
        [record] = self._part.read_records([self._order[self._position]])
        self._position += 1
        return record

    def read_again(self) -> Any:
        """Return the first item of another pass."""
        self._end += self._order.length
        return _require_item(self.read(), self._part.place)

    def take_state(self) -> Any:
        """Return the position."""
        return [self._position, self._end]

    def load_state(self, state: Any) -> None:
        """Continue at a position."""
        self._position, self._end = state


class StreamReader:
    """Reads a stream."""

    def __init__(self, part: StreamedPart, number: int, epoch: int, seed: int) -> None:
        """Start an epoch of the part with this number."""
        self._stream = part.source
        self._place = part.place
        begin_stream(self._stream, epoch, derive_part_seed(seed, epoch, "part", (number,)))
        self._position = StreamPosition()
        self._iterator = self._position.open(self._stream, None)
        self.is_saved = self._position.is_saved

    def read(self) -> Any:
        """Return the next item; `_END` at the end of a pass."""
        return next(self._iterator, _END)

    def read_again(self) -> Any:
        """Return the first item of another pass."""
        self._iterator = self._position.open(self._stream, None)
        return _require_item(self.read(), self._place)

    def take_state(self) -> Any:
        """Return the stream's state. Raises ValueError if it cannot be saved, after a warning with the reason."""
        state = self._position.take()
        if state is None:
            raise ValueError(f"{self._place} has no state that can be saved")
        return state

    def load_state(self, state: Any) -> None:
        """Continue at a state."""
        self._iterator = self._position.open(self._stream, state)


class StreamedPart:
    """A stream among the sources."""

    def __init__(self, source: Any, place: str) -> None:
        """Raises TypeError for an iterator."""
        if isinstance(source, Iterator):
            kind = type(source).__qualname__
            raise TypeError(f"{place} is an iterator ({kind}), which can be read only once; give a function or class")
        self.source = source
        self.place = place

    def describe_files(self) -> SourceFiles | None:
        """Return the identity of the files."""
        return describe_stream_files(self.source)


def has_stream(sources: object) -> bool:
    """Return whether one of a list of sources is a stream."""
    return isinstance(sources, list | tuple) and any(is_stream(source) for source in sources)


def refuse_shuffle(sources: Sequence[Any], label: str, shuffle: object) -> None:
    """Raise ValueError if `shuffle` is set for a list with a stream."""
    if shuffle:
        index = next(index for index, source in enumerate(sources) if is_stream(source))
        raise ValueError(
            f"{label}: sources[{index}] is a stream, which has no indices for `shuffle` to order; remove `shuffle`, "
            "set it on the parts that have indices, and add a stage {name: shuffle, uses: stagepipe.stages.Shuffle, "
            "with: {size: 1000}}"
        )


def _require_item(item: Any, place: str) -> Any:
    if item is _END:
        raise ValueError(f"{place} has no items; remove it")
    return item
