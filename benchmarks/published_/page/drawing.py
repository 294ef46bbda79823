"""The plots: log axes, medians, and their intervals as error bars. matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from crossover_.drawing import draw as draw_crossover
from crossover_.rounds import Row as CrossoverRow
from published_.page.e4 import READY, shapes
from published_.page.e5 import functions
from published_.page.forms import by_time
from published_.summary import Figure, Row, Summary
from side_by_side.machine import hardware_line

_OURS = "#c1272d"
_MANY = 1e4
_TICKS = 30
"""More than there are; with fewer allowed, matplotlib leaves some out."""
_MARKERS = "sDv^<>pPX*hd"
_QUIET = {"linewidth": 1.0, "markersize": 4, "alpha": 0.85, "capsize": 2}
_LOUD = {"linewidth": 2.2, "markersize": 6, "capsize": 3, "zorder": 5}


def draw(summary: Summary, about: dict[str, Any], folder: Path) -> dict[str, str]:
    """A plot for each experiment that was measured; their paths from the folder's parent, by experiment."""
    import matplotlib as mpl

    folder.mkdir(parents=True, exist_ok=True)
    machine, made = hardware_line(about["machine"]), {}
    # Text stays text, so that an SVG can be searched; the same figures give the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "stagepipe"}):
        for name, figure in _figures(summary):
            figure.supxlabel(machine, fontsize=7, color="#666666")
            path = folder / f"{name.replace(' ', '_').lower()}.svg"
            figure.savefig(path, metadata={"Date": None})
            made[name] = f"{folder.name}/{path.name}"
    if "E3" in about:
        path = folder / "e3.svg"
        draw_crossover([CrossoverRow(**row) for row in about["E3"]["rows"]], [path], machine)
        made["E3"] = f"{folder.name}/{path.name}"
    return made


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


def _error(figures: Sequence[Figure]) -> list[list[float]]:
    """How far below and above the medians the intervals reach, in ms."""
    found = [figure.ns for figure in figures if figure.ns]
    return [[(each.value - each.low) / 1e6 for each in found], [(each.high - each.value) / 1e6 for each in found]]


def _ms(figures: Sequence[Figure]) -> list[float]:
    return [figure.ns.value / 1e6 for figure in figures if figure.ns]


def _styles(rows: Sequence[Row]) -> Iterator[tuple[Row, dict[str, Any]]]:
    from matplotlib import colormaps

    colours, ours = colormaps["tab20"].colors, 0  # type: ignore[attr-defined]
    for at, row in enumerate(rows):
        if row.contestant.is_stagepipe:
            yield row, {**_LOUD, "color": _OURS, "marker": "o", "linestyle": ("-", "--", ":")[ours]}
            ours += 1
        else:
            colour = colours[(2 * at + at // 10) % len(colours)]
            yield row, {**_QUIET, "color": colour, "marker": _MARKERS[at % len(_MARKERS)]}


def _round_trips(rows: Sequence[Row]) -> Any:
    payload = next(iter(rows[0].figures))
    return _bars(
        [(row, row.figures[payload]) for row in reversed(by_time(rows, payload))], f"round trip of {payload}, ms"
    )


def _bars(bars: Sequence[tuple[Row, Figure]], label: str) -> Any:
    from matplotlib.figure import Figure as Drawing

    there = [(row, figure) for row, figure in bars if figure.ns]
    drawing = Drawing(figsize=(9, 0.6 + 0.34 * len(there)), layout="constrained")
    axes = drawing.add_subplot()
    figures = [figure for _, figure in there]
    axes.barh(
        [row.contestant.name for row, _ in there],
        _ms(figures),
        xerr=_error(figures),
        color=[_OURS if row.contestant.is_stagepipe else "#7d97ad" for row, _ in there],
        capsize=3,
    )
    axes.set_xscale("log")
    axes.set_xlabel(label)
    _plain(axes.xaxis)
    axes.grid(visible=True, axis="x", which="both", alpha=0.25)
    axes.set_axisbelow(True)
    return drawing


def _plain(axis: Any) -> None:
    """Numbers as one reads them: at each power of ten, and where these are few at 2 and 5 of each, too."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high < _MANY * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=_TICKS))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


def _lists(rows: Sequence[Row]) -> Any:
    return _curves(rows, {name: 10.0 ** int(name[3:]) for name in rows[0].figures}, "integers")


def _requests(rows: Sequence[Row]) -> Any:
    sizes = {shape + READY: rows[0].figures[shape].nbytes / 1e6 for shape in shapes(rows)}
    return _curves(rows, sizes, "MB of float64, made beforehand")


def _curves(rows: Sequence[Row], at: dict[str, float], label: str) -> Any:
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(10, 6.2), layout="constrained")
    axes = drawing.add_subplot()
    _draw_curves(axes, rows, at)
    axes.set_xlabel(label)
    axes.set_ylabel("ms until it is in hand")
    drawing.legend(loc="outside right center", frameon=False, fontsize=8)
    return drawing


def _draw_curves(axes: Any, rows: Sequence[Row], at: dict[str, float]) -> None:
    for row, style in _styles(rows):
        there = [payload for payload in at if row.figures[payload].ns]
        figures = [row.figures[payload] for payload in there]
        axes.errorbar(
            [at[payload] for payload in there], _ms(figures), _error(figures), label=row.contestant.name, **style
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain(axes.xaxis)
    _plain(axes.yaxis)
    axes.grid(visible=True, which="major", alpha=0.3)


def _calls(rows: Sequence[Row]) -> Any:
    from matplotlib.figure import Figure as Drawing
    from matplotlib.ticker import FixedLocator, NullLocator

    drawing = Drawing(figsize=(11, 6.4), layout="constrained")
    for place, (function, axes) in enumerate(zip(functions(rows), drawing.subplots(2, 3).flat, strict=False)):
        workers = {
            name: float(name.rpartition(" ")[2]) for name in rows[0].figures if name.startswith(f"{function} x ")
        }
        _draw_curves(axes, rows, workers)
        axes.xaxis.set_major_locator(FixedLocator(list(workers.values())))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(function, fontsize=10)
        axes.set_xlabel("workers, and calls")
        axes.set_ylabel("" if place % 3 else "ms")
    drawing.axes[-1].axis("off")
    drawing.axes[-1].legend(*drawing.axes[0].get_legend_handles_labels(), loc="center", frameon=False)
    return drawing


def _objects(rows: Sequence[Row]) -> Any:
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(9, 4.4), layout="constrained")
    axes = drawing.add_subplot()
    names = list(rows[0].figures)
    _draw_curves(axes, rows, {name: float(place + 1) for place, name in enumerate(names)})
    axes.set_xscale("linear")
    axes.set_xticks(range(1, len(names) + 1), names)
    axes.set_ylabel("us an object")  # ms of a thousand
    axes.legend(frameon=False)
    return drawing
