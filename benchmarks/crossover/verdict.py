"""The table of `auto` against the others at every size, the targets, and the plot. Pure.

The plot has microseconds per transfer against d for all five contestants. Its error bars show the standard error of the
mean, as in the write-up. matplotlib is imported only to draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.figures import (
    VERDICTS,
    Estimate,
    Target,
    compare,
    estimate,
    format_times,
    mean_and_error,
    quotient,
)
from benchmarks.common.page import format_row, save_plot
from benchmarks.crossover.rounds import CONTESTANTS, MODES, Row

AUTO = "stagepipe auto"
FIXED_MODES = tuple(name for name in MODES if name != AUTO)
PEERS = tuple(name for name in CONTESTANTS if name not in MODES)
MAX_RATIO = 1.1
"""The largest allowed ratio of `auto` to the better contestant. An interval above it is a miss, one on both sides of it
is undecided."""


@dataclass(frozen=True)
class Line:
    """A size: microseconds per transfer, and `auto` against the better fixed mode and the better peer.

    `us` has the median of the repetitions for each contestant. The medians decide which one is better, and the ratios
    are theirs.
    """

    d: int
    us: dict[str, Estimate]
    own: str
    to_own: Estimate
    peer: str
    to_peer: Estimate


def lines(rows: Sequence[Row], *, steady: bool = False) -> list[Line]:
    """Return a line for each size at which all contestants were measured; `steady` excludes the request."""
    size_lines = []
    for d in sorted({row.d for row in rows}):
        values_by_contestant = {row.contestant: row.steady_us if steady else row.us for row in rows if row.d == d}
        if len(values_by_contestant) == len(CONTESTANTS):
            us = {name: estimate(values) for name, values in values_by_contestant.items()}
            own, peer = (min(names, key=lambda name: us[name].value) for names in (FIXED_MODES, PEERS))
            to_own, to_peer = (quotient(us[AUTO], us[name]) for name in (own, peer))
            size_lines.append(Line(d, us, own, to_own, peer, to_peer))
    return size_lines


def make_table(size_lines: Sequence[Line]) -> Iterator[str]:
    """Yield the table in Markdown: microseconds per transfer, and the two ratios with their intervals."""
    names = [f"**{name}**" if name in MODES else name for name in CONTESTANTS]
    yield format_row(("d", "bytes", *names, "auto / better mode", "auto / better peer"))
    yield format_row(["---"] + ["---:"] * (len(names) + 3))
    for line in size_lines:
        us = [format_times(line.us[name]) for name in CONTESTANTS]
        to_peer = f"{format_times(line.to_peer)} {line.peer}"
        yield format_row((str(line.d), f"{4 * line.d**2:,}", *us, format_times(line.to_own), to_peer))


def targets(size_lines: Sequence[Line], sizes: int) -> Iterator[Target]:
    """Judge both targets. `met` is None where that is undecided, or not all `sizes` were measured."""
    complete = len(size_lines) == sizes and sizes > 0
    yield _target(
        "`auto` is as fast as the better of its two modes",
        {line.d: line.to_own for line in size_lines},
        complete=complete,
    )
    yield _target(
        "`auto` is never slower than Pipe or RawArray", {line.d: line.to_peer for line in size_lines}, complete=complete
    )


def _target(text: str, ratios: dict[int, Estimate], *, complete: bool) -> Target:
    text = f"{text} (at every d, the whole interval of the ratio lies at {MAX_RATIO} or below)"
    if not ratios:
        return Target(text)
    found = {d: compare(ratio, at_most=MAX_RATIO) for d, ratio in ratios.items()}
    parts = [
        f"{VERDICTS[met]} at {_listed({d: ratios[d] for d in ratios if found[d] is met})}"
        for met in (False, None)
        if met in found.values()
    ]
    if parts:
        return Target(text, "; ".join(parts), False if False in found.values() else None)
    worst = max(ratios, key=lambda d: ratios[d].high)
    return Target(text, f"the largest ratio is {ratios[worst].text()} at d = {worst}", True if complete else None)


def _listed(ratios: dict[int, Estimate]) -> str:
    return ", ".join(f"d = {d} ({estimate.text()})" for d, estimate in ratios.items())


_STYLES: dict[str, dict[str, Any]] = {
    "Pipe": {"color": "#9a6a00", "marker": "s"},
    "RawArray": {"color": "#7a5195", "marker": "D"},
    "stagepipe pipe": {"color": "#4393c3", "marker": "v", "linestyle": "--"},
    "stagepipe shared_memory": {"color": "#2c8c5a", "marker": "^", "linestyle": "--"},
    "stagepipe auto": {"color": "#c1272d", "marker": "o", "linewidth": 2.2, "zorder": 5},
}


def draw(rows: Sequence[Row], paths: Sequence[Path], machine: str) -> None:
    """Write the plot to each of `paths`, in the format of its suffix (svg, png)."""
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
    save_plot(figure, *paths)


def _format_bytes(nbytes: float) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.0f} {unit}"
    return f"{nbytes:.0f} B"
