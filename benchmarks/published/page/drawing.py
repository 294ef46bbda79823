"""The plots: medians on log axes, with their intervals as error bars. matplotlib is imported only to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.machine import hardware_line
from benchmarks.crossover.drawing import draw as draw_crossover
from benchmarks.crossover.rounds import Row as CrossoverRow
from benchmarks.published.page.e4 import READY, shapes
from benchmarks.published.page.e5 import functions
from benchmarks.published.page.forms import by_time
from benchmarks.published.summary import Figure, Row, Summary

_STAGEPIPE_COLOUR = "#c1272d"
_WIDE_RANGE = 1e4
_MAX_TICKS = 30
"""More ticks than there are; with a lower limit, matplotlib omits some."""
_MARKERS = "sDv^<>pPX*hd"
_OTHER_STYLE = {"linewidth": 1.0, "markersize": 4, "alpha": 0.85, "capsize": 2}
_STAGEPIPE_STYLE = {"linewidth": 2.2, "markersize": 6, "capsize": 3, "zorder": 5}


def draw(summary: Summary, about: dict[str, Any], folder: Path) -> dict[str, str]:
    """Draw each measured experiment. Return the paths of the plots, relative to the folder's parent, by experiment."""
    import matplotlib as mpl

    folder.mkdir(parents=True, exist_ok=True)
    machine, plot_paths = hardware_line(about["machine"]), {}
    # Text stays text, so an SVG can be searched; the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "stagepipe"}):
        for name, figure in _figures(summary):
            figure.supxlabel(machine, fontsize=7, color="#666666")
            path = folder / f"{name.replace(' ', '_').lower()}.svg"
            figure.savefig(path, metadata={"Date": None})
            plot_paths[name] = f"{folder.name}/{path.name}"
    if "E3" in about:
        path = folder / "e3.svg"
        draw_crossover([CrossoverRow(**row) for row in about["E3"]["rows"]], [path], machine)
        plot_paths["E3"] = f"{folder.name}/{path.name}"
    return plot_paths


def _figures(summary: Summary) -> Iterator[tuple[str, Any]]:
    plots: dict[str, Callable[[Sequence[Row]], Any]] = {
        "E1": _round_trips,
        "E2": _lists,
        "E4": _requests,
        "E5": _calls,
        "E5 queue": _objects,
    }
    for name, rows in summary.items():
        yield name, plots[name](rows)


def _error_bars(figures: Sequence[Figure]) -> list[list[float]]:
    """Return how far the intervals reach below and above the medians, in ms."""
    estimates = [figure.ns for figure in figures if figure.ns]
    below = [(estimate.value - estimate.low) / 1e6 for estimate in estimates]
    above = [(estimate.high - estimate.value) / 1e6 for estimate in estimates]
    return [below, above]


def _ms(figures: Sequence[Figure]) -> list[float]:
    return [figure.ns.value / 1e6 for figure in figures if figure.ns]


def _styles(rows: Sequence[Row]) -> Iterator[tuple[Row, dict[str, Any]]]:
    from matplotlib import colormaps

    colours, stagepipe_rows = colormaps["tab20"].colors, 0  # type: ignore[attr-defined]
    for index, row in enumerate(rows):
        if row.contestant.is_stagepipe:
            yield (
                row,
                {
                    **_STAGEPIPE_STYLE,
                    "color": _STAGEPIPE_COLOUR,
                    "marker": "o",
                    "linestyle": ("-", "--", ":")[stagepipe_rows],
                },
            )
            stagepipe_rows += 1
        else:
            colour = colours[(2 * index + index // 10) % len(colours)]
            yield row, {**_OTHER_STYLE, "color": colour, "marker": _MARKERS[index % len(_MARKERS)]}


def _round_trips(rows: Sequence[Row]) -> Any:
    payload = next(iter(rows[0].figures))
    return _bars(
        [(row, row.figures[payload]) for row in reversed(by_time(rows, payload))], f"round trip of {payload}, ms"
    )


def _bars(bars: Sequence[tuple[Row, Figure]], label: str) -> Any:
    from matplotlib.figure import Figure as Drawing

    measured = [(row, figure) for row, figure in bars if figure.ns]
    drawing = Drawing(figsize=(9, 0.6 + 0.34 * len(measured)), layout="constrained")
    axes = drawing.add_subplot()
    figures = [figure for _, figure in measured]
    axes.barh(
        [row.contestant.name for row, _ in measured],
        _ms(figures),
        xerr=_error_bars(figures),
        color=[_STAGEPIPE_COLOUR if row.contestant.is_stagepipe else "#7d97ad" for row, _ in measured],
        capsize=3,
    )
    axes.set_xscale("log")
    axes.set_xlabel(label)
    _label_plainly(axes.xaxis)
    axes.grid(visible=True, axis="x", which="both", alpha=0.25)
    axes.set_axisbelow(True)
    return drawing


def _label_plainly(axis: Any) -> None:
    """Label each power of ten with a plain number, and also 2 and 5 times each where there are few powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high < _WIDE_RANGE * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=_MAX_TICKS))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def _lists(rows: Sequence[Row]) -> Any:
    return _curves(rows, {name: 10.0 ** int(name[3:]) for name in rows[0].figures}, "integers")


def _requests(rows: Sequence[Row]) -> Any:
    sizes = {shape + READY: rows[0].figures[shape].nbytes / 1e6 for shape in shapes(rows)}
    return _curves(rows, sizes, "MB of float64, created beforehand")


def _curves(rows: Sequence[Row], positions: dict[str, float], label: str) -> Any:
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(10, 6.2), layout="constrained")
    axes = drawing.add_subplot()
    _draw_curves(axes, rows, positions)
    axes.set_xlabel(label)
    axes.set_ylabel("ms until received")
    drawing.legend(loc="outside right center", frameon=False, fontsize=8)
    return drawing


def _draw_curves(axes: Any, rows: Sequence[Row], positions: dict[str, float]) -> None:
    for row, style in _styles(rows):
        measured = [payload for payload in positions if row.figures[payload].ns]
        figures = [row.figures[payload] for payload in measured]
        axes.errorbar(
            [positions[payload] for payload in measured],
            _ms(figures),
            _error_bars(figures),
            label=row.contestant.name,
            **style,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    _label_plainly(axes.xaxis)
    _label_plainly(axes.yaxis)
    axes.grid(visible=True, which="major", alpha=0.3)


def _calls(rows: Sequence[Row]) -> Any:
    from matplotlib.figure import Figure as Drawing
    from matplotlib.ticker import FixedLocator, NullLocator

    drawing = Drawing(figsize=(11, 6.4), layout="constrained")
    for index, (function, axes) in enumerate(zip(functions(rows), drawing.subplots(2, 3).flat, strict=False)):
        workers = {
            name: float(name.rpartition(" ")[2]) for name in rows[0].figures if name.startswith(f"{function} x ")
        }
        _draw_curves(axes, rows, workers)
        axes.xaxis.set_major_locator(FixedLocator(list(workers.values())))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(function, fontsize=10)
        axes.set_xlabel("workers (and calls)")
        axes.set_ylabel("" if index % 3 else "ms")
    drawing.axes[-1].axis("off")
    drawing.axes[-1].legend(*drawing.axes[0].get_legend_handles_labels(), loc="center", frameon=False)
    return drawing


def _objects(rows: Sequence[Row]) -> Any:
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(9, 4.4), layout="constrained")
    axes = drawing.add_subplot()
    names = list(rows[0].figures)
    _draw_curves(axes, rows, {name: float(index + 1) for index, name in enumerate(names)})
    axes.set_xscale("linear")
    axes.set_xticks(range(1, len(names) + 1), names)
    axes.set_ylabel("us per object")  # ms of a thousand
    axes.legend(frameon=False)
    return drawing
