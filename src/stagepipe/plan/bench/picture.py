"""A bench as a picture: what a message costs by size, and where the crossover lies. By matplotlib, imported when drawn.

matplotlib is the extra `bench`: log axes, error bars, SVG and PNG by a library that is well kept.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stagepipe.core import UsageError
from stagepipe.core.units import format_bytes, format_ns
from stagepipe.plan.bench.model import COLD, HOP, SIZES, Bench

FORMS = (".svg", ".png")
_STYLES: dict[str, dict[str, Any]] = {
    "pipe": {"color": "#c1272d", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "copied": {"color": "#1a7f4e", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "loaned": {"color": "#2166ac", "marker": "^", "linewidth": 1.4},
    "passed on": {"color": "#67a9cf", "marker": "v", "linewidth": 1.4},
    COLD: {"color": "#7fbf7b", "marker": "x", "linewidth": 1.0, "linestyle": ":"},
    "Pipe": {"color": "#9a6a00", "marker": "s", "linewidth": 1.2, "linestyle": "--"},
    "Queue": {"color": "#c994c7", "marker": "P", "linewidth": 1.2, "linestyle": "--"},
    "SharedMemory": {"color": "#7a5195", "marker": "D", "linewidth": 1.2, "linestyle": "--"},
}
_LABELS = {
    "pipe": "hop: pipe",
    "copied": "hop: shared memory, copied",
    "loaned": "hop: loaned, not copied",
    "passed on": "hop: passed on, not copied",
    COLD: "hop: copied to untouched memory",
    "Pipe": "multiprocessing Pipe",
    "Queue": "multiprocessing Queue",
    "SharedMemory": "multiprocessing SharedMemory",
}


def check_pictures(paths: Iterable[Path]) -> None:
    """UsageError unless a picture can be drawn to each of `paths`; asked before the measuring.

    >>> check_pictures([Path("a.gif")])
    Traceback (most recent call last):
    stagepipe.core.errors.UsageError: --plot a.gif: a plot is a .svg or a .png file; name one
    """
    for path in paths:
        if path.suffix not in FORMS:
            raise UsageError(f"--plot {path}: a plot is a .svg or a .png file; name one")
        if path.is_dir() or not path.parent.is_dir():
            raise UsageError(f"--plot {path}: that is a folder, or lies in none; name a file in a folder that exists")
        if importlib.util.find_spec("matplotlib") is None:
            raise UsageError(f"--plot {path}: drawing needs matplotlib: pip install 'stagepipe[bench]'")


def draw(bench: Bench, paths: Sequence[Path]) -> None:
    """Write the picture to each of `paths`, as SVG or PNG by its suffix. UsageError as `check_pictures`."""
    check_pictures(paths)
    if not paths:
        return
    import matplotlib as mpl

    # Text stays text, so that an SVG can be searched; the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "stagepipe"}):
        figure = _figure(bench)
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _figure(bench: Bench) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 6.2), layout="constrained")
    axes = figure.add_subplot()
    for name, points in bench.points.items():
        axes.errorbar(
            [point.nbytes for point in points],
            [point.ns / 1000 for point in points],
            [[(point.ns - point.low_ns) / 1000 for point in points], [(p.high_ns - p.ns) / 1000 for p in points]],
            label=_LABELS[name],
            markersize=5 if name in HOP else 4,
            capsize=2,
            elinewidth=1,
            **_STYLES[name],
        )
    _mark_crossover(axes, bench)
    _label(axes, bench)
    axes.legend(loc="upper left", fontsize=8, framealpha=1, edgecolor="white")
    return figure


def _mark_crossover(axes: Any, bench: Bench) -> None:
    at = bench.crossing_bytes
    if at is None:
        return
    axes.axvline(at, color="#444444", linewidth=1, linestyle="-.", zorder=1)
    axes.annotate(
        f" from {format_bytes(at)} up\n shared memory is cheaper",
        (at, 0.03),
        xycoords=("data", "axes fraction"),
        fontsize=9,
        color="#444444",
    )


def _label(axes: Any, bench: Bench) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = [size for size in SIZES if size in bench.sizes and size != 3 << 10]  # it is too near to 4 KiB
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_bytes(size)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: format_ns(us * 1000)))
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("size of the array in the message")
    axes.set_ylabel("work of both sides for a message")
    axes.set_title("What a message from one process to another costs on this machine", fontsize=12, pad=22)
    host = bench.host
    axes.text(
        0.5,
        1.015,
        f"medians and quartiles; {host.get('cpu', '?')}, {host.get('cpus', '?')} CPUs, "
        f"Linux {host.get('kernel', '?')}, Python {host.get('python', '?')}, load average {bench.load_average:.1f}",
        transform=axes.transAxes,
        ha="center",
        fontsize=8,
        color="#666666",
    )
    axes.set_ylim(bottom=axes.get_ylim()[0] / 1.6)  # room for the crossover's words
    axes.grid(visible=True, which="major", alpha=0.25)
