"""Plots a bench: the cost of a message by size, and the crossover. Runs in the caller's process.

matplotlib, from the extra `bench`, draws the log axes and error bars and writes SVG and PNG. It is imported on use.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stagepipe.bench.model import BENCH_SIZES_BYTES, COLD, HOP_MECHANISMS, BenchResult
from stagepipe.core import UsageError, format_bytes, format_ns

PLOT_SUFFIXES = (".svg", ".png")
_LINE_STYLES: dict[str, dict[str, Any]] = {
    "pipe": {"color": "#c1272d", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "copied": {"color": "#1a7f4e", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "loaned": {"color": "#2166ac", "marker": "^", "linewidth": 1.4},
    "passed on": {"color": "#67a9cf", "marker": "v", "linewidth": 1.4},
    COLD: {"color": "#7fbf7b", "marker": "x", "linewidth": 1.0, "linestyle": ":"},
    "Pipe": {"color": "#9a6a00", "marker": "s", "linewidth": 1.2, "linestyle": "--"},
    "Queue": {"color": "#c994c7", "marker": "P", "linewidth": 1.2, "linestyle": "--"},
    "SharedMemory": {"color": "#7a5195", "marker": "D", "linewidth": 1.2, "linestyle": "--"},
}
_LEGEND_LABELS = {
    "pipe": "hop: pipe",
    "copied": "hop: shared memory, copied",
    "loaned": "hop: loaned, not copied",
    "passed on": "hop: passed on, not copied",
    COLD: "hop: copied to untouched memory",
    "Pipe": "multiprocessing Pipe",
    "Queue": "multiprocessing Queue",
    "SharedMemory": "multiprocessing SharedMemory",
}


def check_plot_paths(paths: Iterable[Path]) -> None:
    """Raise UsageError unless a plot can be written to each of `paths`. Called before anything is measured.

    >>> check_plot_paths([Path("a.gif")])
    Traceback (most recent call last):
    stagepipe.core.errors.UsageError: --plot a.gif: a plot needs a .svg or .png file; name one
    """
    for path in paths:
        if path.suffix not in PLOT_SUFFIXES:
            raise UsageError(f"--plot {path}: a plot needs a .svg or .png file; name one")
        if path.is_dir() or not path.parent.is_dir():
            raise UsageError(
                f"--plot {path}: this is a folder, or its parent folder does not exist; "
                "name a file in an existing folder"
            )
        if importlib.util.find_spec("matplotlib") is None:
            raise UsageError(f"--plot {path}: matplotlib is not installed; run: pip install 'matplotlib>=3.8'")


def draw_plots(result: BenchResult, paths: Sequence[Path]) -> None:
    """Write the plot to each of `paths`, as SVG or PNG by its suffix. Raises UsageError as `check_plot_paths` does."""
    check_plot_paths(paths)
    if not paths:
        return
    import matplotlib as mpl

    # Text stays text, so an SVG can be searched. The same result always gives the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "stagepipe"}):
        figure = _make_figure(result)
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _make_figure(result: BenchResult) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 6.2), layout="constrained")
    axes = figure.add_subplot()
    for name, points in result.points.items():
        axes.errorbar(
            [point.nbytes for point in points],
            [point.ns / 1000 for point in points],
            [[(point.ns - point.low_ns) / 1000 for point in points], [(p.high_ns - p.ns) / 1000 for p in points]],
            label=_LEGEND_LABELS[name],
            markersize=5 if name in HOP_MECHANISMS else 4,
            capsize=2,
            elinewidth=1,
            **_LINE_STYLES[name],
        )
    _mark_crossover(axes, result)
    _label_axes(axes, result)
    axes.legend(loc="upper left", fontsize=8, framealpha=1, edgecolor="white")
    return figure


def _mark_crossover(axes: Any, result: BenchResult) -> None:
    crossover_bytes = result.crossover_bytes
    if crossover_bytes is None:
        return
    axes.axvline(crossover_bytes, color="#444444", linewidth=1, linestyle="-.", zorder=1)
    axes.annotate(
        f" shared memory is cheaper\n from {format_bytes(crossover_bytes)} up",
        (crossover_bytes, 0.03),
        xycoords=("data", "axes fraction"),
        fontsize=9,
        color="#444444",
    )


def _label_axes(axes: Any, result: BenchResult) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    # 3 KiB has no tick: its label would overlap that of 4 KiB.
    ticks = [size for size in BENCH_SIZES_BYTES if size in result.sizes_bytes and size != 3 << 10]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_bytes(size)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: format_ns(us * 1000)))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("size of the array in the message")
    axes.set_ylabel("work of both sides per message")
    axes.set_title("Cost of a message between two processes on this machine", fontsize=12, pad=22)
    host = result.host
    axes.text(
        0.5,
        1.015,
        f"medians and quartiles; {host.get('cpu', '?')}, {host.get('cpus', '?')} CPUs, "
        f"Linux {host.get('kernel', '?')}, Python {host.get('python', '?')}, load average {result.load_average:.1f}",
        transform=axes.transAxes,
        ha="center",
        fontsize=8,
        color="#666666",
    )
    axes.set_ylim(bottom=axes.get_ylim()[0] / 1.6)  # room for the crossover's label
    axes.grid(visible=True, which="major", alpha=0.25)
