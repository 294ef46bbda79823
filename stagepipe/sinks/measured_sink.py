"""`MeasuredSink`: stands for a sink with workers in a probe. Measures what it writes; runs in the sink's worker.

The files go to a temporary folder: the sink's own folder is not touched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.sinks.part import Part, PartRecord
from stagepipe.sinks.part_sink import PartSink
from stagepipe.sinks.parts import count_bytes

_MAX_REPETITIONS: Final = 3
_MAX_MEASURED_NS: Final = 50_000_000
"""A part that takes longer is not written again: its time varies little."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPartRecord(PartRecord):
    """What a sink has written of a part, and how long it took, in ns: for all rows, and for the first half of them.

    Two sizes tell the time of a row from that of a part: the parts of a probe are small. `item_bytes` is the size of
    the part's items in memory.
    """

    write_ns: int
    half_rows: int
    half_write_ns: int
    item_bytes: int


class MeasuredSink(PartSink):
    """Write the parts of a probe with `sink`, to `folder`, and measure it.

    Nothing but `sink.write_part` is called, which gets a path: whatever the sink's own folder holds, it stays. `folder`
    keeps what was written of each part last. A sink whose parts have a `multiple` of so many items never gets another
    number of them.
    """

    def __init__(self, *, sink: PartSink, folder: str | os.PathLike[str], multiple: int = 1) -> None:
        super().__init__(folder)
        self._sink = sink
        self._multiple = multiple
        self._has_loaded = False
        """Whether a part was written before it was measured: the first write of all may load libraries."""

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write `items` as the sink does."""
        self._sink.write_part(items, path)

    def __call__(self, part: Part) -> Part:
        """Write a part several times, with all of its rows and with half of them."""
        items = self.select_items(part)
        half = items[: len(items) // 2 // self._multiple * self._multiple]
        if not self._has_loaded:
            self.remove_part(self._measure(items)[0])
            self._has_loaded = True
        half_path, half_write_ns = self._measure(half)
        self.remove_part(half_path)
        path, write_ns = self._measure(items)
        record = MeasuredPartRecord(
            file=None if path is None else path.name,
            rows=len(items),
            size_bytes=0 if path is None else path.stat().st_size,
            write_ns=write_ns,
            half_rows=len(half),
            half_write_ns=half_write_ns,
            item_bytes=sum(map(count_bytes, part.read_items())),
        )
        part.add_record(record)
        return part

    def _measure(self, items: Sequence[Any]) -> tuple[Path | None, int]:
        """Return the last file and the shortest time: any may wait for a CPU."""
        path = None
        began_ns = perf_counter_ns()
        durations_ns: list[int] = []
        while items and len(durations_ns) < _MAX_REPETITIONS and perf_counter_ns() - began_ns < _MAX_MEASURED_NS:
            self.remove_part(path)
            path = self.make_part_path()
            started_ns = perf_counter_ns()
            self.write_part(items, path)
            durations_ns.append(perf_counter_ns() - started_ns)
        return path, min(durations_ns, default=0)

    @staticmethod
    def remove_part(path: Path | None) -> None:
        """Remove the file or folder of a part. None: no row was written."""
        if path is None:
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
