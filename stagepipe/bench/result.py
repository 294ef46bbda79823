"""The result of a bench: the cost of a message by mechanism and size, and the size from which shared memory is cheaper.

As values and JSON (pure), as a table for the terminal, and as a plot. matplotlib, from the extra `bench`, draws log
axes and error bars and writes SVG and PNG. It is imported at its first use.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stagepipe.core import UsageError, format_bytes, format_ns
from stagepipe.costs import CostCurves
from stagepipe.report import TerminalView

BENCH_SIZES_BYTES = (64, 512, 1 << 10, 3 << 10, 4 << 10, *((16 << 10) << shift for shift in range(0, 14, 2)))
"""Bytes of the array in a message. With the packet header, each size has another bit length, so the ledger keeps them
apart.
"""
PIPE = "pipe"
"""Through the pipe."""
COPIED = "copied"
"""Copied into a shared-memory block that was used before."""
COLD = "cold"
"""Copied into a shared-memory block whose pages were never touched."""
HOP_MECHANISMS = (PIPE, COPIED, "loaned", "passed on", COLD)
"""The ways in which a hop can carry a message; each has a curve in `CostCurves`."""
PEER_MECHANISMS = ("Pipe", "Queue", "SharedMemory")
"""The mechanisms of multiprocessing in the comparison."""


@dataclass(frozen=True, kw_only=True)
class CostPoint:
    """The cost of a message by one mechanism, at one size: `ns` is the median, `low_ns` and `high_ns` the quartiles."""

    nbytes: int
    count: int
    low_ns: int
    ns: int
    high_ns: int


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """The result of a bench: points by mechanism, the smallest size first, the fitted curves and the conditions.

    A point holds the work of both sides, with pickling and reading. For the hop's mechanisms that part is
    `serialization_ns`, the same for all. The curves omit it.

    >>> curves = CostCurves.from_points((64, 4096, 65536), (9_000, 90_000, 300_000), (24_000, 30_000, 45_000))
    >>> pipe = CostPoint(nbytes=4096, count=9, low_ns=95_000, ns=96_000, high_ns=99_000)
    >>> copied = CostPoint(nbytes=4096, count=9, low_ns=35_000, ns=36_000, high_ns=39_000)
    >>> points = {"pipe": (pipe,), "copied": (copied,)}
    >>> result = BenchResult(points=points, curves=curves, serialization_ns=6_000, duration_s=20.0, rounds=15)
    >>> result.crossover_summary
    'shared memory is cheaper from 881 B up: at 4.1 kB it takes 36 µs, the pipe 96 µs'
    """

    points: Mapping[str, tuple[CostPoint, ...]]
    curves: CostCurves
    serialization_ns: int
    duration_s: float
    rounds: int
    host: Mapping[str, Any] = field(default_factory=dict)
    load_average: float = 0.0

    @property
    def busy_warning(self) -> str:
        """Why the costs are too high, if other processes used the CPUs; otherwise "", the empty string."""
        cpus = self.host.get("cpus", 0)
        if not cpus or self.load_average <= cpus:
            return ""
        return (
            f"other processes used the machine (load average {self.load_average:.1f} on {cpus} CPUs), so these costs "
            "are too high; run it again when the machine is idle"
        )

    @property
    def crossover_bytes(self) -> int | None:
        """The size from which shared memory stays cheaper than the pipe; None if it is not cheaper at the largest."""
        crossover_bytes = self.curves.find_crossover_bytes()
        is_cheaper = self.curves.copied(crossover_bytes) <= self.curves.pipe(crossover_bytes)
        return crossover_bytes if is_cheaper else None

    @property
    def crossover_summary(self) -> str:
        """The crossover as a sentence, with the costs at the next measured size."""
        crossover_bytes = self.crossover_bytes
        if crossover_bytes is None:
            return f"shared memory is not cheaper than the pipe up to {format_bytes(self.curves.copied.sizes[-1])}"
        is_at_every_size = crossover_bytes <= self.curves.pipe.sizes[0]
        sizes = "at every size" if is_at_every_size else f"from {format_bytes(crossover_bytes)} up"
        nbytes, shared_ns, pipe_ns = self._find_crossover_costs(crossover_bytes)
        return (
            f"shared memory is cheaper {sizes}: at {format_bytes(nbytes)} it takes {format_ns(shared_ns)}, "
            f"the pipe {format_ns(pipe_ns)}"
        )

    def _find_crossover_costs(self, crossover_bytes: int) -> tuple[int, int, int]:
        """(bytes, ns copied, ns by pipe) at the first measured size that shows the crossover.

        If no measured size shows it, the costs of the curves at `crossover_bytes`.
        """
        for copied in self.points.get(COPIED, ()):
            pipe = self.get_point(PIPE, copied.nbytes)
            if pipe is not None and copied.nbytes >= crossover_bytes and copied.ns < pipe.ns:
                return copied.nbytes, copied.ns, pipe.ns
        return crossover_bytes, self.curves.copied(crossover_bytes), self.curves.pipe(crossover_bytes)

    def get_point(self, mechanism: str, nbytes: int) -> CostPoint | None:
        """The cost of a mechanism at a size; None if it was not measured."""
        return next((point for point in self.points.get(mechanism, ()) if point.nbytes == nbytes), None)

    @property
    def sizes_bytes(self) -> list[int]:
        """The measured sizes, in ascending order."""
        return sorted({point.nbytes for points in self.points.values() for point in points})

    @property
    def relative_iqr(self) -> float:
        """The interquartile range as a share of the median; the median over all points."""
        ranges = [(point.high_ns - point.low_ns) / point.ns for points in self.points.values() for point in points]
        return median(ranges) if ranges else 0.0


def check_output_path(path: Path | None, option: str = "--json") -> None:
    """Raise UsageError unless a file can be written to `path`. Call it before the measurement."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UsageError(
            f"{option} {path}: this is a folder, or its parent folder does not exist; name a file in an existing folder"
        )


def to_json(result: BenchResult) -> str:
    """The result as JSON, in the schema `stagepipe.bench/2`. Sizes are in bytes, durations in ns."""
    data = {
        "schema": "stagepipe.bench/2",
        "host": {**result.host, "load_average": result.load_average},
        "duration_s": result.duration_s,
        "rounds": result.rounds,
        "serialization_ns": result.serialization_ns,
        "crossover_bytes": result.crossover_bytes,
        "crossover": result.crossover_summary,
        "relative_iqr": result.relative_iqr,
        "points": {name: [asdict(point) for point in points] for name, points in result.points.items()},
        "curves": result.curves.to_dict(),
    }
    return json.dumps(data, indent=1) + "\n"


# ------------------------------------------------------------------ the table


def render_bench(result: BenchResult) -> RenderableType:
    """Render a bench for `rich.console.Console.print`: a row per size, the crossover and notes. Fits 80 columns.

    >>> Console().print(render_bench(result))  # doctest: +SKIP
    """
    parts: tuple[RenderableType, ...] = (
        _make_table(result),
        Text(),
        Text(f"{result.crossover_summary[0].upper()}{result.crossover_summary[1:]}.", style="bold"),
        *(Text(note, style="dim") for note in _make_notes(result)),
    )
    return TerminalView(lambda _: parts)


def _make_table(result: BenchResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("size", justify="right")
    for name in (*HOP_MECHANISMS, *PEER_MECHANISMS):
        heading = "Shared\nMemory" if name == "SharedMemory" else name.replace(" ", "\n")
        table.add_column(heading, justify="right", header_style="bold cyan" if name in HOP_MECHANISMS else "bold")
    for size in result.sizes_bytes:
        table.add_row(format_bytes(size), *_make_cells(result, size))
    return table


def _make_cells(result: BenchResult, nbytes: int) -> Iterator[Text]:
    points = {name: result.get_point(name, nbytes) for name in (*HOP_MECHANISMS, *PEER_MECHANISMS)}
    pair_ns = [point.ns for name in (PIPE, COPIED) if (point := points[name]) is not None]
    for name, point in points.items():
        is_cheaper = point is not None and name in {PIPE, COPIED} and len(pair_ns) > 1 and point.ns == min(pair_ns)
        yield Text(format_ns(point.ns) if point is not None else "", style="bold green" if is_cheaper else "")


def _make_notes(result: BenchResult) -> Iterator[str]:
    messages = sum(point.count for points in result.points.values() for point in points)
    yield (
        "The work of both sides for a message with one array: pickling, copying, sending, receiving; no waits. "
        f"Medians of {messages:,} messages, interleaved; the interquartile range is {result.relative_iqr:.0%} of the "
        "median."
    )
    yield (
        "pipe, copied, loaned, passed on, cold: how a stagepipe hop carries the message; `auto` takes the cheaper of "
        f"pipe and copied. Each includes {format_ns(result.serialization_ns)} of pickling and reading. Pipe, Queue, "
        "SharedMemory: multiprocessing, with a new SharedMemory object per message."
    )
    host, versions = result.host, result.host.get("versions", {})
    packages = "".join(f", {name} {versions[name]}" for name in ("stagepipe", "numpy") if name in versions)
    yield (
        f"{host.get('cpu', '?')}, {host.get('cpus', '?')} CPUs, {format_bytes(host.get('memory_bytes', 0))}, Linux "
        f"{host.get('kernel', '?')}, Python {host.get('python', '?')}{packages}; load average "
        f"{result.load_average:.1f}; {result.duration_s:.0f} s."
    )


# ------------------------------------------------------------------ the plot

PLOT_SUFFIXES = (".svg", ".png")
_STYLES: dict[str, dict[str, Any]] = {
    "pipe": {"label": "hop: pipe", "color": "#c1272d", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "copied": {"label": "hop: shared memory, copied", "color": "#1a7f4e", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "loaned": {"label": "hop: loaned, not copied", "color": "#2166ac", "marker": "^", "linewidth": 1.4},
    "passed on": {"label": "hop: passed on, not copied", "color": "#67a9cf", "marker": "v", "linewidth": 1.4},
    COLD: {"label": "hop: copied to untouched memory", "color": "#7fbf7b", "marker": "x", "linestyle": ":"},
    "Pipe": {"label": "multiprocessing Pipe", "color": "#9a6a00", "marker": "s", "linestyle": "--"},
    "Queue": {"label": "multiprocessing Queue", "color": "#c994c7", "marker": "P", "linestyle": "--"},
    "SharedMemory": {"label": "multiprocessing SharedMemory", "color": "#7a5195", "marker": "D", "linestyle": "--"},
}
"""The lines of the plot. Those of a hop are solid, except for the line of untouched memory."""


def check_plot_paths(paths: Iterable[Path]) -> None:
    """Raise UsageError unless a plot can be written to each of `paths`. Call it before the measurement.

    >>> check_plot_paths([Path("a.gif")])
    Traceback (most recent call last):
    stagepipe.core.errors.UsageError: --plot a.gif: a plot needs a .svg or .png file; name one
    """
    for path in paths:
        if path.suffix not in PLOT_SUFFIXES:
            raise UsageError(f"--plot {path}: a plot needs a .svg or .png file; name one")
        check_output_path(path, "--plot")
        if importlib.util.find_spec("matplotlib") is None:
            raise UsageError(f"--plot {path}: matplotlib is not installed; run: pip install 'matplotlib>=3.8'")


def draw_plots(result: BenchResult, paths: Sequence[Path]) -> None:
    """Write the plot to each of `paths`, as SVG or PNG by its suffix. Raises UsageError as `check_plot_paths` does."""
    check_plot_paths(paths)
    if not paths:
        return
    import matplotlib as mpl

    # Text stays text, so an SVG can be searched. Equal results give equal files.
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
            markersize=5 if name in HOP_MECHANISMS else 4,
            capsize=2,
            elinewidth=1,
            **{"linewidth": 1.2, **_STYLES[name]},
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
    # 3 KiB has no tick, because its label would overlap the label of 4 KiB.
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
