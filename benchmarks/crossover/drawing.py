"""The plot: microseconds per transfer against d for all five contestants.

Error bars show the standard error of the mean, as in the write-up. matplotlib is imported only to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.figures import mean_and_error
from benchmarks.crossover.rounds import CONTESTANTS, Row

_STYLES: dict[str, dict[str, Any]] = {
    "Pipe": {"color": "#9a6a00", "marker": "s"},
    "RawArray": {"color": "#7a5195", "marker": "D"},
    "stagepipe pipe": {"color": "#4393c3", "marker": "v", "linestyle": "--"},
    "stagepipe shared_memory": {"color": "#2c8c5a", "marker": "^", "linestyle": "--"},
    "stagepipe auto": {"color": "#c1272d", "marker": "o", "linewidth": 2.2, "zorder": 5},
}


def draw(rows: Sequence[Row], paths: Sequence[Path], machine: str) -> None:
    """Write the plot to each of `paths`, in the format of its suffix (svg, png)."""
    import matplotlib as mpl

    # Text stays text, so an SVG can be searched; the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "stagepipe"}):
        figure = _figure(rows, machine)
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _figure(rows: Sequence[Row], machine: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = Figure(figsize=(9, 5.6), layout="constrained")
    axes = figure.add_subplot()
    sizes = sorted({row.d for row in rows})
    for name in CONTESTANTS:
        contestant_rows = sorted((row for row in rows if row.contestant == name), key=lambda row: row.d)
        points = [mean_and_error(row.us) for row in contestant_rows]
        axes.errorbar(
            [row.d for row in contestant_rows],
            [mean for mean, _ in points],
            [error for _, error in points],
            label=name,
            capsize=3,
            markersize=5,
            **_STYLES[name],
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda d, _: f"{d:.0f}\n{_format_bytes(4 * d * d)}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:,.0f}" if us >= 1 else f"{us:g}"))
    axes.set_xlabel("d of the float32 arrays (d, d), and their size")
    axes.set_ylabel("microseconds per transfer")
    axes.set_title("One array from one process to another: mean of the repetitions and its standard error", fontsize=11)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.supxlabel(machine, fontsize=7, color="#666666")
    return figure


def _format_bytes(nbytes: float) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.0f} {unit}"
    return f"{nbytes:.0f} B"
