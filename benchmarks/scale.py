"""Measure how the cost of a hop grows with stages, workers, bytes and window. No cost may grow faster than necessary.

    python -m benchmarks.scale [--quick] [--rounds 6] [--json FILE] [--plot FILE.svg]   # a quarter of an hour

    stages   1 to 32 stages that pass a small dict on: CPU per item and hop
    workers  1 to 16 workers of one such stage: CPU per item
    bytes    0 B to 256 MB: an array from the source to the caller, copied, and built in shared memory: time per item
    window   2 to 1,024: the small dict through one stage: CPU per item

A figure is the median of the rounds, with its interval; the points of a line are measured in an order that changes
between rounds. `growth` is the exponent of a fitted power, `cost ~ x ** growth`, over the upper half of the line: 0 is
constant, 1 proportional. Copied bytes must grow like a plain copy in memory, so that line is drawn too.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe
from benchmarks.common.command import finish, hardware_line, make_parser, open_run
from benchmarks.common.figures import Estimate, estimate
from benchmarks.common.page import save_plot
from benchmarks.common.turn import CpuMeter, take_rounds

_SMALL_ITEMS, _MIN_SMALL_ITEMS = 60_000, 10_000
"""Divided by the number of stages. The first quarter is not measured: packets get longer once the work is known."""
_LARGE_BYTES = 2 << 30
"""Bytes of a measurement; together with the limits below, they determine its items."""
_MIN_LARGE_ITEMS, _MAX_LARGE_ITEMS = 12, 4_000
_WARM_UP_SHARE = 0.25
_STAGES = (1, 2, 4, 8, 16, 32)
_WORKERS = (1, 2, 4, 8, 16)
_WINDOWS = (2, 8, 32, 128, 512, 1024)
_SIZES = (0, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)


@dataclass(frozen=True)
class Line:
    """A line of a plot: the result of `measure` for each x, in microseconds."""

    panel: str
    name: str
    points: tuple[int, ...]
    measure: Callable[[int], float]


def _measure(config: dict[str, Any], count: int, *, is_cpu: bool) -> float:
    """Return the CPU or wall microseconds per item in the steady state."""
    with stagepipe.Pipeline({"name": "scale", "stages": [], **config}) as pipeline:
        items = iter(pipeline)
        warm_up = max(1, int(count * _WARM_UP_SHARE))
        for _ in range(warm_up):
            next(items)
        cpu, begin_ns = CpuMeter(), time.perf_counter_ns()
        for _ in range(count - warm_up - 1):
            next(items)
        used_us = cpu.measure_s() * 1e6 if is_cpu else (time.perf_counter_ns() - begin_ns) / 1e3
    return used_us / (count - warm_up - 1)


def _make_source(count: int, **values: Any) -> dict[str, Any]:
    return {"uses": "benchmarks.common.stages.Arrays", "with": {"count": count, **values}}


def _pass_through(stages: int = 1, workers: int = 1, **keys: Any) -> float:
    count = max(_MIN_SMALL_ITEMS, _SMALL_ITEMS // stages)
    listed = [{"name": f"s{n}", "uses": "benchmarks.common.stages.pass_on", "workers": workers} for n in range(stages)]
    return _measure({"source": _make_source(count), "stages": listed, **keys}, count, is_cpu=True)


def _send_array(nbytes: int, *, built: bool) -> float:
    count = _count_items(nbytes)
    return _measure({"source": _make_source(count, nbytes=nbytes, built=built)}, count, is_cpu=False)


def _count_items(nbytes: int) -> int:
    return int(min(_MAX_LARGE_ITEMS, max(_MIN_LARGE_ITEMS, _LARGE_BYTES // max(nbytes, 1))))


def _copy(nbytes: int) -> float:
    source, target = np.ones(nbytes, np.uint8), np.empty((4, nbytes), np.uint8)
    count = _count_items(nbytes)
    np.copyto(target, source)
    begin_ns = time.perf_counter_ns()
    for number in range(count):
        np.copyto(target[number % 4], source)
    return (time.perf_counter_ns() - begin_ns) / 1e3 / count


LINES = (
    Line("stages", "CPU for an item and a hop", _STAGES, lambda stages: _pass_through(stages) / (stages + 1)),
    Line("workers", "CPU for an item", _WORKERS, lambda workers: _pass_through(workers=workers)),
    Line("bytes", "copied", _SIZES, lambda nbytes: _send_array(nbytes, built=False)),
    Line("bytes", "built in shared memory", _SIZES[1:], lambda nbytes: _send_array(nbytes, built=True)),
    Line("bytes", "numpy.copyto", _SIZES[1:], _copy),
    Line("window", "CPU for an item", _WINDOWS, lambda window: _pass_through(window=window)),
)


def main(arguments: Sequence[str]) -> None:
    """Measure, print a table for each line, and write the JSON and the plot if requested."""
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds, every other point")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(arguments)
    rounds, step = (2, 2) if options.quick else (options.rounds, 1)
    document = open_run("scale")
    found = {line: _measure_line(line, line.points[::step], rounds) for line in LINES}
    for line, figures in found.items():
        print(f"\n{line.panel}, {line.name}, us: growth {fit_growth(figures):.2f}")
        print(*(f"  {x:>12,}  {figure.text()}" for x, figure in figures.items()), sep="\n")
    if options.plot:
        draw(found, hardware_line(document["machine"]), options.plot)
    lines = [
        {"panel": line.panel, "name": line.name, "points": {x: asdict(figure) for x, figure in figures.items()}}
        for line, figures in found.items()
    ]
    finish(options.json, {**document, "rounds": rounds, "lines": lines})


def _measure_line(line: Line, points: Sequence[int], rounds: int) -> dict[int, Estimate]:
    found = take_rounds([str(x) for x in points], rounds, lambda x: {"us": line.measure(int(x))})
    return {int(x): estimate(figures["us"]) for x, figures in found.items()}


def fit_growth(figures: Mapping[int, Estimate]) -> float:
    """Return the exponent of the power that fits the upper half of the points, by least squares of logarithms.

    >>> fit_growth({x: Estimate(3.0 * x, 0, 0, 0) for x in (1, 2, 4, 8)})
    1.0
    """
    points = [(math.log(x), math.log(figure.value)) for x, figure in figures.items() if x > 0]
    upper = points[len(points) // 2 :] if len(points) > 3 else points
    mean_x, mean_y = (sum(values) / len(upper) for values in zip(*upper, strict=True))
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in upper)
    return round(float(covariance / sum((x - mean_x) ** 2 for x, _ in upper)), 3)


def draw(found: Mapping[Line, Mapping[int, Estimate]], caption: str, path: Path) -> None:
    """Draw a panel for each of stages, workers, bytes and window."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(line.panel for line in found))
    drawing = Figure(figsize=(10, 7), layout="constrained")
    for axes, panel in zip(drawing.subplots(2, 2).flat, panels, strict=True):
        for line, figures in found.items():
            if line.panel == panel:
                shown = {max(x, 1): figure for x, figure in figures.items()}
                middle = [figure.value for figure in shown.values()]
                error = [[f.value - f.low for f in shown.values()], [f.high - f.value for f in shown.values()]]
                axes.errorbar(list(shown), middle, error, label=line.name, marker="o", markersize=4, capsize=2)
        axes.set(xscale="log", yscale="log" if panel == "bytes" else "linear", xlabel=panel, ylabel="us")
        if panel != "bytes":
            axes.set_ylim(bottom=0)
            axes.set_xticks(ticks := [x for line in found if line.panel == panel for x in found[line]], map(str, ticks))
            axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    drawing.supxlabel(caption, fontsize=8)
    save_plot(drawing, path)


if __name__ == "__main__":
    main(sys.argv[1:])
