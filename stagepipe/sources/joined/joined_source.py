"""`JoinedSource`: the base of sources whose records are those of several sources. Runs where it is built and read."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from stagepipe.core import SourceFiles, join_files
from stagepipe.sources.joined.source_parts import make_parts
from stagepipe.sources.record_source import RecordSource, ShuffleMode


class JoinedSource(RecordSource):
    """The records of several sources, numbered one source after the other. An own order says which of them come when.

    Args:
        sources: map-style sources.
        shuffle: see `RecordSource`.
    """

    def __init__(self, sources: Sequence[Any], *, shuffle: ShuffleMode = False) -> None:
        super().__init__(shuffle=shuffle)
        self.parts = make_parts(sources, self.label)

    @functools.cached_property
    def first_indices(self) -> list[int]:
        """The index of the first record of each part, and the number of all records."""
        return [0, *accumulate(len(part) for part in self.parts)]

    def __len__(self) -> int:
        return self.first_indices[-1]

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the records of several indices. Those of one part are read together."""
        places = [self._locate(index) for index in indices]
        if len({number for number, _ in places}) == 1:
            return self.parts[places[0][0]].read_records([index for _, index in places])
        records: dict[tuple[int, int], Any] = {}
        for number, part in enumerate(self.parts):
            wanted = [place for place in places if place[0] == number]
            read = part.read_records([index for _, index in wanted]) if wanted else []
            records.update(zip(wanted, read, strict=True))
        return [records[place] for place in places]

    def describe_files(self) -> SourceFiles | None:
        """Return what identifies the files of all parts."""
        return join_files([part.describe_files() for part in self.parts])

    def _locate(self, index: int) -> tuple[int, int]:
        number = bisect_right(self.first_indices, index) - 1
        return number, index - self.first_indices[number]
