"""Put the tables and the plots of benchmarks/published into its page, from the results.

    python -m benchmarks.published.make_page [RESULTS.json] [PAGE.md]

The prose is written by hand, in docs/benchmarks.md. What stands between two markers, `<!-- E1 -->` and `<!-- /E1 -->`,
is made: an experiment's tables and plot, the run, the targets, and the contestants that are faster. The plots go into a
folder next to the page, with the name of the page without its suffix.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.common.command import hardware_line, machine_line
from benchmarks.common.figures import find_coverage
from benchmarks.common.page import fill, save_plot
from benchmarks.common.turn import ROOT
from benchmarks.crossover.rounds import Row as CrossoverRow
from benchmarks.crossover.verdict import draw as draw_crossover
from benchmarks.published.experiments import EXPERIMENTS
from benchmarks.published.results import Figure, Row, Summary, read_turns, summarise
from benchmarks.published.tables import E3, READY, experiment_tables, functions, shapes
from benchmarks.published.verdicts import by_time, losses, paragraph, targets

_STAGEPIPE_COLOUR, _OTHER_COLOUR = "#c1272d", "#5a7184"
_WIDE_RANGE = 1e3
_MAX_TICKS = 30
"""More ticks than there are; with a lower limit, matplotlib omits some."""
_PANEL_WIDTH, _ROW_HEIGHT = 5.6, 0.23
_XLABELS = {"E5 queue": "ms for a thousand objects"}


def draw(summary: Summary, about: dict[str, Any], folder: Path) -> dict[str, str]:
    """Draw each measured experiment. Return the paths of the plots, relative to the folder's parent, by experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    machine, plot_paths = hardware_line(about["machine"]), {}
    for experiment, rows in summary.items():
        figure = _panels(list(_payloads(experiment, rows)), rows, _XLABELS.get(experiment, "ms"))
        figure.supxlabel(machine, fontsize=7, color="#666666")
        path = folder / f"{experiment.replace(' ', '_').lower()}.svg"
        save_plot(figure, path)
        plot_paths[experiment] = f"{folder.name}/{path.name}"
    if E3 in about:
        path = folder / "e3.svg"
        draw_crossover([CrossoverRow(**row) for row in about[E3]["rows"]], [path], machine)
        plot_paths[E3] = f"{folder.name}/{path.name}"
    return plot_paths


def _payloads(experiment: str, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield the payload of each panel, and its title: the smallest and the largest where there are many."""
    payloads = list(rows[0].figures)
    if experiment == "E4":
        for shape in dict.fromkeys((shapes(rows)[0], shapes(rows)[-1])):
            yield shape + READY, f"{shape}, ready: {rows[0].figures[shape].nbytes / 1e6:,.1f} MB"
    elif experiment == "E5":
        yield from ((named[-1], named[-1]) for named in functions(rows).values())
    elif experiment == "E2":
        yield from ((payload, f"{payload} integers") for payload in dict.fromkeys((payloads[0], payloads[-1])))
    else:
        yield from ((payload, payload) for payload in payloads)


def _panels(payloads: Sequence[tuple[str, str]], rows: Sequence[Row], xlabel: str) -> Any:
    from matplotlib.figure import Figure as Drawing

    columns = min(2, len(payloads))
    lines = ceil(len(payloads) / columns)
    height = lines * (0.9 + _ROW_HEIGHT * len(rows)) + 0.3
    drawing = Drawing(figsize=(max(8.0, _PANEL_WIDTH * columns), height), layout="constrained")
    panels = list(drawing.subplots(lines, columns, squeeze=False).flat)
    for (payload, title), axes in zip(payloads, panels, strict=False):
        _draw_dots(axes, [(row, row.figures[payload]) for row in reversed(by_time(rows, payload))])
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(xlabel)
    for axes in panels[len(payloads) :]:
        axes.axis("off")
    return drawing


def _draw_dots(axes: Any, dots: Sequence[tuple[Row, Figure]]) -> None:
    measured = [(row, figure.ns) for row, figure in dots if figure.ns]
    for position, (row, ns) in enumerate(measured):
        is_own = row.contestant.is_stagepipe
        axes.errorbar(
            ns.value / 1e6,
            position,
            xerr=[[(ns.value - ns.low) / 1e6], [(ns.high - ns.value) / 1e6]],
            fmt="D" if is_own else "o",
            color=_STAGEPIPE_COLOUR if is_own else _OTHER_COLOUR,
            markersize=6 if is_own else 4.5,
            capsize=2.5,
            linewidth=1.2,
        )
    axes.set_yticks(range(len(measured)), [_label(row) for row, _ in measured], fontsize=8)
    for label, (row, _) in zip(axes.get_yticklabels(), measured, strict=True):
        if row.contestant.is_stagepipe:
            label.set(color=_STAGEPIPE_COLOUR, fontweight="bold")
    axes.set_xscale("log")
    axes.margins(y=0.5 / max(1, len(measured)))
    _label_plainly(axes.xaxis)
    axes.grid(visible=True, axis="x", which="major", alpha=0.3)
    axes.grid(visible=True, axis="y", alpha=0.12)
    axes.set_axisbelow(True)


def _label(row: Row) -> str:
    return f"{row.contestant.name} ({row.contestant.work})" if row.contestant.work else row.contestant.name


def _label_plainly(axis: Any) -> None:
    """Label each power of ten with a plain number, and also 2 and 5 times each where there are few powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high < _WIDE_RANGE * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=_MAX_TICKS))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))


_PROSE = ROOT / "docs" / "benchmarks.md"
_PINNED = "The receiver has its own processor and all other processes share the rest, except in E5's functions."
_UNPINNED = "The kernel places the processes."


def main(arguments: Sequence[str]) -> None:
    """Write the page and the plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="?", default=Path("runs/published.json"))
    parser.add_argument("page", type=Path, nargs="?", default=Path("runs/benchmarks.md"))
    options = parser.parse_args(arguments)
    document = json.loads(options.results.read_text())
    if not document["finished"]:
        message = f"{options.results} is incomplete; resume the run with: {document['command']}"
        raise SystemExit(message)
    summary = summarise(read_turns(document), document["settings"]["size"])
    pictures = draw(summary, document, options.page.with_suffix(""))
    page = _PROSE.read_text()
    for name, block in blocks(summary, document, pictures).items():
        page = fill(page, name, block.strip())
    options.page.write_text(page)
    print(f"wrote {options.page} and {len(pictures)} plots to {options.page.with_suffix('')}")


def blocks(summary: Summary, about: dict[str, Any], pictures: dict[str, str]) -> dict[str, str]:
    """Return what stands between the markers, by their name."""
    made = {"run": _run(about), "targets": "\n".join(targets(summary)), "faster": "\n".join(losses(summary))}
    for experiment in (*EXPERIMENTS, E3):
        lines = list(experiment_tables(experiment, summary, about))
        if source := about["sources"].get(experiment):
            lines = [f"Payload: {source}.", *lines]
        if experiment in pictures:
            lines += ["", f"![{experiment}]({pictures[experiment]})"]
        made[experiment] = "\n".join(lines)
    return made


def tables(summary: Summary, about: dict[str, Any]) -> Iterator[str]:
    """Format the tables of every measured experiment and the verdicts, to print them at the end of a run."""
    for experiment in (*summary, *([E3] if E3 in about else [])):
        yield f"\n## {experiment}"
        yield from experiment_tables(experiment, summary, about)
    yield from ("\n## Targets\n", *targets(summary), "\n## Where stagepipe is slower\n", *losses(summary))


def _run(about: dict[str, Any]) -> str:
    settings, count = about["settings"], about["settings"]["rounds"]
    took = f"{about['took_s'] / 60:.0f} minutes, load average {about['load_average_at_end']:.1f} at the end"
    return "\n\n".join(
        (
            paragraph(
                f"{count} rounds; an interval over {count} contains the true median with a probability of "
                f"{find_coverage(count):.0%}. {_PINNED if settings['pinned'] else _UNPINNED} Measured on: "
                f"{machine_line(about['machine'])} at the start; {took}. Command:"
            ),
            f"```sh\n{about['command']}\n```",
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
