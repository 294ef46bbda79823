"""A 38.5 MB array through three model stages: as a chain, each stage alone, and with one item in flight.

    python -m benchmarks.chain [--items 40]

A model reads some of the array and waits, as for a GPU: 100, 120 and 150 ms. A graph that gives the array to all three
at once has the rate of the slowest alone. `copied an item` is the sum over all hops. Rates are of the steady state.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common.machine import machine, machine_line
from stagepipe import from_source
from stagepipe.report import Report

_WAITS_S = (0.1, 0.12, 0.15)


def make(number: int) -> dict[str, Any]:
    """Make an item with a new array of 38.5 MB."""
    return {"id": number, "pixels": np.full((64, 3, 224, 224), number, np.float32)}


def score(pixels: np.ndarray, wait_s: float) -> float:
    """Read some of the array and wait, as for a GPU."""
    time.sleep(wait_s)
    return float(pixels[:, :, ::8, ::8].mean())


def run(waits_s: tuple[float, ...], items: int, **options: Any) -> Report:
    """Run the array through a model stage for each wait; each adds a field."""
    builder = from_source(range(items)).map(make)
    for index, wait_s in enumerate(waits_s):
        builder = builder.map_field("pixels", partial(score, wait_s=wait_s), into=f"score{index}")
    return builder.with_options(memory="4GiB", **options).run()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure a chain of three models.")
    parser.add_argument("--items", type=int, default=40)
    items = parser.parse_args().items
    print(machine_line(machine()))
    print(f"{'pipeline':32}{'items/s':>9}{'copied an item':>17}")
    alone: list[Any] = [(f"{wait_s * 1e3:.0f} ms alone", (wait_s,), {}) for wait_s in _WAITS_S]
    chains = [("chain of the three", _WAITS_S, {}), ("chain, one item in flight", _WAITS_S, {"window": 1})]
    for name, waits_s, options in [*alone, *chains]:
        report = run(waits_s, items, **options)
        copied_mb = sum(hop.bytes.copied for hop in report.hops) / items / 1e6
        print(f"{name:32}{report.run.items_per_s:9.1f}{copied_mb:14.1f} MB", flush=True)


if __name__ == "__main__":
    main()
