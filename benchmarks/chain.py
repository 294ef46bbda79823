"""A 38.5 MB array through three model stages: each by itself, as a chain, with one item in flight, and into two sinks.

    python -m benchmarks.chain [--items 40]

A model reads some of the array and waits, as for a GPU: 100, 120 and 150 ms. A graph that gives the array to all three
at once would run at the rate of the slowest model. Each sink has one worker: one sink writes the scores, the other one
reads the array and writes a thumbnail or statistics of it. `copied an item` is the sum over all hops. Rates are of the
steady state.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.command import open_run
from stagepipe import defer, from_source
from stagepipe.report import Report
from stagepipe.sinks import PartSink

_WAITS_S = (0.1, 0.12, 0.15)
_SHAPE = (64, 3, 224, 224)


class TextSink(PartSink):
    """Write a line for each item."""

    appends = True
    extension = ".txt"

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the lines of the items."""
        path.write_text("".join(f"{self.format_line(item)}\n" for item in items))

    def format_line(self, item: dict[str, Any]) -> str:
        """Return an item's number and its scores."""
        return " ".join([str(item["id"]), *(f"{item[name]:g}" for name in sorted(item) if name.startswith("score"))])


class StatisticsSink(TextSink):
    """Write the mean and the largest value of each array."""

    def format_line(self, item: dict[str, Any]) -> str:
        """Return an item's number and the statistics of its array."""
        return f"{item['id']} {item['pixels'].mean():g} {item['pixels'].max():g}"


class ThumbnailSink(PartSink):
    """Write an eighth of the rows and columns of each array."""

    extension = ".npy"

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the thumbnails of the items as one array."""
        with path.open("wb") as file:
            np.save(file, np.stack([item["pixels"][:, :, ::8, ::8] for item in items]))


def make(number: int, shape: tuple[int, ...] = _SHAPE) -> dict[str, Any]:
    """Make an item with a new array."""
    return {"id": number, "pixels": np.full(shape, number, np.float32)}


def score(pixels: np.ndarray, wait_s: float) -> float:
    """Read some of the array and wait, as for a GPU."""
    time.sleep(wait_s)
    return float(pixels[:, :, ::8, ::8].mean())


def run(
    waits_s: tuple[float, ...],
    items: int,
    *,
    shape: tuple[int, ...] = _SHAPE,
    sinks: Sequence[type[PartSink]] = (),
    folder: str = "",
    **options: Any,
) -> Report:
    """Run the array through a model stage per wait; each stage adds a field. `sinks` write to folders in `folder`."""
    builder: Any = from_source(range(items)).map(partial(make, shape=shape))
    for index, wait_s in enumerate(waits_s):
        builder = builder.map_field("pixels", partial(score, wait_s=wait_s), into=f"score{index}")
    for sink in sinks:
        builder = builder.sink(defer(sink, f"{folder}/{sink.__name__}"), workers=1)
    return builder.with_options(memory="4GiB", **options).run()  # type: ignore[no-any-return]


def count_copied_bytes(report: Report) -> int:
    """Return the number of bytes that all hops have copied to shared memory."""
    return sum(hop.bytes.copied for hop in report.hops)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure a chain of three models.")
    parser.add_argument("--items", type=int, default=40)
    items = parser.parse_args().items
    open_run("chain")
    print(f"{'pipeline':40}{'items/s':>9}{'copied an item':>17}")
    alone: list[Any] = [(f"{wait_s * 1e3:.0f} ms alone", (wait_s,), {}) for wait_s in _WAITS_S]
    chains: list[Any] = [
        ("chain of the three", _WAITS_S, {}),
        ("chain, one item in flight", _WAITS_S, {"window": 1}),
        ("chain, sinks: scores, thumbnails", _WAITS_S, {"sinks": (TextSink, ThumbnailSink)}),
        ("chain, sinks: thumbnails, statistics", _WAITS_S, {"sinks": (ThumbnailSink, StatisticsSink)}),
    ]
    for name, waits_s, options in [*alone, *chains]:
        with tempfile.TemporaryDirectory() as folder:
            report = run(waits_s, items, folder=folder, **options)
        print(f"{name:40}{report.run.items_per_s:9.1f}{count_copied_bytes(report) / items / 1e6:14.1f} MB", flush=True)


if __name__ == "__main__":
    main()
