"""`ZipSource`: the items of several sources side by side. Runs in the source's process and in workers of `dataset`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from stagepipe.core import SourceFiles, join_files
from stagepipe.sources.joined.source_parts import SourcePart, make_parts
from stagepipe.sources.record_source import RecordSource, ShuffleMode


class ZipSource(RecordSource):
    """Yield the first items of several sources together, then their second ones, and so on.

    In YAML it is `uses: stagepipe.sources.zip`.

    Args:
        sources: a list of map-style sources: an item is a tuple of their items. Or a mapping of them by field,
            such as `{image: {uses: stagepipe.sources.npy, with: {path: images.npy}}, label: {uses:
            stagepipe.sources.npy, with: {path: labels.npy}}}`: an item is a dict.
        strict: false: stop at the end of the shortest source. True: sources of unequal length are an error.
        shuffle: shuffle the tuples, in a different order in each epoch, drawn from the pipeline's seed and the epoch.

    >>> ZipSource({"number": [1, 2], "word": ["one", "two"]})[1]
    {'number': 2, 'word': 'two'}

    Raises ValueError for unequal lengths, and for a part with an order of its own (`shuffle`, `mix`), because what
    belongs together would not come together. Raises TypeError for a part that is a stream.
    """

    def __init__(
        self, sources: Sequence[Any] | Mapping[str, Any], *, strict: bool = True, shuffle: ShuffleMode = False
    ) -> None:
        super().__init__(shuffle=shuffle)
        self._strict = strict
        self._fields = list(sources) if isinstance(sources, Mapping) else None
        self._parts = (
            [SourcePart(source, f"{self.label}: sources.{field}") for field, source in sources.items()]
            if isinstance(sources, Mapping) and sources
            else make_parts(sources, self.label)  # type: ignore[arg-type]
        )

    def __len__(self) -> int:
        return self._length

    @functools.cached_property
    def _length(self) -> int:
        for part in self._parts:
            if part.has_own_order:
                raise ValueError(
                    f"{part.place} has an order of its own, so items that belong together would not come together; "
                    f"remove its `shuffle`, and set `shuffle: true` on `{self.label}`"
                )
        lengths = [len(part) for part in self._parts]
        if self._strict and len(set(lengths)) > 1:
            listed = ", ".join(
                f"{part.place.partition(' ')[2]} {length}" for part, length in zip(self._parts, lengths, strict=True)
            )
            raise ValueError(
                f"{self.label}: the sources differ in length: {listed}; give sources of equal length, or set "
                "`strict: false` to stop at the end of the shortest"
            )
        return min(lengths)

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the tuples or dicts of several indices."""
        rows = zip(*(part.read_records(indices) for part in self._parts), strict=True)
        return list(rows) if self._fields is None else [dict(zip(self._fields, row, strict=True)) for row in rows]

    def describe_files(self) -> SourceFiles | None:
        """Return what identifies the files of all parts."""
        return join_files([part.describe_files() for part in self._parts])

    def get_block_starts(self) -> Sequence[int]:
        """Return the first item of each block of the source with the fewest blocks."""
        count = len(self)
        starts = min((part.get_block_starts() for part in self._parts), key=len)
        return [start for start in starts if start < count]
