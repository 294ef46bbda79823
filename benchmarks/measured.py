"""Write the tables of docs/measured.md and README.md from the figures of full runs, and draw the plot of README.md.

    python -m benchmarks.hop --json benchmarks/results/hop.json
    python -m benchmarks.loader --json benchmarks/results/loader.json
    python -m benchmarks.measured

The text around the tables is written by hand. Each table is between markers such as `<!-- hop -->` and
`<!-- end hop -->`. The table of whole jobs in README.md, and a part of the summary, come from peers.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.figures import Estimate, estimate, quotient
from benchmarks.common.page import Document, fill, format_row, make_table, save_plot
from benchmarks.common.turn import FIGURES, ROOT
from benchmarks.hop.__main__ import LOOP_BASE, find_us, make_hop_table, make_loop_table
from benchmarks.loader import (
    BATCH,
    COLLATE,
    DATALOADERS,
    FORKED,
    FORKED_PRELOADED,
    MODELS,
    PLAIN,
    QUICKSTART,
    SPAWNED,
    THREE_PROCESSES,
)
from benchmarks.loader.__main__ import collect, make_loader_table
from benchmarks.peers import OURS
from benchmarks.peers.__main__ import Results
from stagepipe.core import format_ns

README = ROOT / "README.md"
MEASURED = ROOT / "docs" / "measured.md"
PLOT = ROOT / "docs" / "pictures" / "hop.svg"
_JOBS = {
    "images": "JPEG files to batches",
    "thumbnails": "JPEG files to small files",
    "clips": "video clips, four NumPy steps",
    "tensors": "12 kB tensors in memory to batches",
}
"""The jobs of README: one equal to DataLoader, one behind, one ahead, and one that is slower than a plain loop."""
_PLOTTED = {
    "stagepipe": ("#d6336c", "stagepipe filled"),
    "multiprocessing.Pipe": ("#495057", "Pipe"),
    "SharedMemory": ("#1971c2", "SharedMemory"),
    "DataLoader": ("#e8890c", "DataLoader NumPy", "DataLoader torch"),
    "iceoryx2": ("#2f9e44", "iceoryx2"),
}
"""Lines of the plot: a color and the contestants; each point shows the fastest of several contestants."""
_FILLED, _PIPE = "stagepipe filled", "Pipe"
_IMAGES = {"64KB": "64 KB", "1.2MB": "1.2 MB", "8MB": "8 MB"}
_ROUNDED_FROM = 10.0
_ONE_ARRAY = ("SharedMemory reused", "iceoryx2")
"""They hold one array at a time, of a size that both sides know. All others carry any object."""
_NO_HOP = ("stagepipe", "memcpy")
"""Prefixes of the names of our own contestants, and of those that only copy."""


def replace_tables(text: str, *documents: Document) -> str:
    """Return the text of docs/measured.md with the tables for which the runs have figures."""
    for document in documents:
        for table, lines in _make_tables(document):
            text = fill(text, table, "\n{}\n".format("\n".join(lines)))
    return text


def load(name: str) -> Document:
    """Return the committed figures of a run."""
    document: Document = json.loads((FIGURES / f"{name}.json").read_text())
    return document


def _make_tables(document: Document) -> Iterator[tuple[str, Iterator[str]]]:
    if "jobs" in document:
        for part in dict.fromkeys(row["part"] for row in document["rows"]):
            yield part, make_loader_table(document, part)
    elif document["rows"]:
        yield "hop", make_hop_table(document)
    if document.get("loops"):
        yield "loop", make_loop_table(document)


@dataclass(frozen=True)
class Comparison:
    """A line of the table. `advantage` is above 1 if stagepipe is ahead."""

    subject: str
    own: str
    other: str
    advantage: Estimate

    def say(self) -> str:
        """Return the ratio in words.

        >>> Comparison("a hop", "1 us", "Pipe: 2 us", Estimate(0.5, 0.4, 0.8, 0.97)).say()
        '2.00 [1.25, 2.50] times slower'
        """
        value, word = self.advantage, "faster"
        if value.low < 1 < value.high:
            return f"undecided: {value.text()} times as fast"
        if value.value < 1:
            value, word = value.invert(), "slower"
        return f"{value.text(2 if value.value < _ROUNDED_FROM else 1)} times {word}"


def make_summary(hop: dict[str, Any], loader: dict[str, Any], peers: Results) -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    lines = (*_compare_hops(hop), *_compare_loops(hop), *_compare_loaders(loader), *_compare_jobs(peers))
    rows = ((line.subject, line.own, line.other, line.say()) for line in lines)
    yield "| | stagepipe | the other | stagepipe is |"
    yield "|---|---|---|---|"
    yield from map(format_row, rows)
    yield from ("", _describe_memory(loader))


def _compare_hops(document: dict[str, Any]) -> Iterator[Comparison]:
    us = find_us(document["rows"])
    for size, label in _IMAGES.items():
        others = {name: us[name, size] for name, other in us if other == size and not name.startswith(_NO_HOP)}
        fastest = min(others, key=lambda name: median(others[name]))
        any_object = min((name for name in others if name not in _ONE_ARRAY), key=lambda name: median(others[name]))
        for name in dict.fromkeys((_PIPE, any_object, fastest)):
            yield _compare_times(f"a hop with an image of {label}", us[_FILLED, size], name, others[name])


def _compare_loops(document: dict[str, Any]) -> Iterator[Comparison]:
    for kind, turns in list(document["loops"].items())[:1]:
        for own, other in LOOP_BASE.items():
            figures = [[turn["us"] for turn in turns[name]] for name in (own, other)]
            stage = ", with a stage" if "+" in own else ""
            yield _compare_times(f"a loop over dicts of {kind}{stage}", figures[0], other, figures[1])


def _compare_times(subject: str, own: Sequence[float], other_name: str, other: Sequence[float]) -> Comparison:
    texts = [f"{value:,.1f} us" if value < 100 else f"{value:,.0f} us" for value in (median(own), median(other))]
    return Comparison(
        subject, texts[0], f"{other_name}: {texts[1]}", quotient(estimate(list(other)), estimate(list(own)))
    )


def _compare_rates(subject: str, own: Sequence[float], other_name: str, other: Sequence[float]) -> Comparison:
    own_text, other_text = (f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" for value in map(median, (own, other)))
    ratio = quotient(estimate(list(own)), estimate(list(other)))
    return Comparison(subject, f"{own_text} items/s", f"{other_name}: {other_text}", ratio)


def _compare_loaders(document: dict[str, Any]) -> Iterator[Comparison]:
    subjects = {
        (QUICKSTART, PLAIN): "JPEG files to batches, the quickstart",
        (COLLATE, BATCH): "collating a batch of 38.5 MB",
    }
    for (part, own), subject in subjects.items():
        rates = collect(document, part, "items_per_s")
        others = {name: rates[name] for name in DATALOADERS[part] if name in rates}
        fastest = max(others, key=lambda name: median(others[name]))
        yield _compare_rates(subject, rates[own], fastest, others[fastest])


def _describe_memory(document: dict[str, Any]) -> str:
    memory = {name: median(figures) / 1e6 for name, figures in collect(document, MODELS, "pss_bytes").items()}
    return (
        f"Three models of 400 MB take {memory[THREE_PROCESSES]:,.0f} MB in stagepipe, {memory[SPAWNED]:,.0f} MB in "
        f"three spawned DataLoader workers, {memory[FORKED]:,.0f} MB in forked ones, and "
        f"{memory[FORKED_PRELOADED]:,.0f} MB in workers that are forked after the models were built, and share them."
    )


def _compare_jobs(results: Results) -> Iterator[Comparison]:
    for job in results.jobs:
        rates = {name: list(found["items_per_s"].values()) for name, found in results.collect(job).items()}
        others = [name for name, rounds in rates.items() if rounds and not name.startswith(OURS)]
        fastest = max(others, key=lambda name: median(rates[name]))
        yield _compare_rates(f"the whole job *{job}*", rates[OURS], fastest, rates[fastest])


def make_job_table(results: Results) -> Iterator[str]:
    """Yield the lines of README's table of whole jobs, in Markdown. A ratio whose interval excludes 1 is bold."""
    fastest = {line.subject: line for line in _compare_jobs(results)}
    rows = []
    for job, description in _JOBS.items():
        rates = {name: list(found["items_per_s"].values()) for name, found in results.collect(job).items()}
        loader = _compare_rates("", rates[OURS], "DataLoader", rates["DataLoader"])
        best = fastest[f"the whole job *{job}*"]
        own, loader_rate, other = best.own.partition(" ")[0], loader.other.partition(": ")[2], best.other
        rows.append((description, own, loader_rate, _mark(loader.advantage), other, _mark(best.advantage)))
    return make_table(("items/s", "stagepipe", "DataLoader", "ratio", "the fastest other tool", "ratio"), rows, left=1)


def _mark(ratio: Estimate) -> str:
    return ratio.text() if ratio.low <= 1 <= ratio.high else f"**{ratio.text()}**"


def draw_plot(path: Path = PLOT) -> None:
    """Draw the cost of a hop by the size of its array: a log-log plot of the medians in hop.json, as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    document = load("hop")
    sizes = {row["size"]: row["nbytes"] for row in document["rows"] if row["nbytes"]}
    us = find_us(document["rows"])
    with mpl.rc_context({"font.size": 11}):
        figure = Figure(figsize=(9, 4.4), layout="constrained")
        axes = figure.add_subplot()
        for label, (color, *names) in _PLOTTED.items():
            costs = [min(median(us[name, size]) for name in names) for size in sizes]
            is_own = label == "stagepipe"
            width = 3 if is_own else 1.6
            axes.plot(list(sizes.values()), costs, "o-", color=color, linewidth=width, markersize=5, zorder=2 + is_own)
            offset = _LABEL_OFFSETS.get(label, 0)
            weight = "bold" if is_own else "normal"
            axes.annotate(
                label,
                (list(sizes.values())[-1], costs[-1]),
                (9, offset),
                textcoords="offset points",
                va="center",
                color=color,
                weight=weight,
            )
        _label_plot(axes, sizes, _find_crossover(us, sizes))
        save_plot(figure, path)


_LABEL_OFFSETS = {"multiprocessing.Pipe": 4, "SharedMemory": -4, "stagepipe": 5, "iceoryx2": -6}
"""Vertical offsets in points for lines whose ends are close."""


def _find_crossover(us: Mapping[tuple[str, str], Sequence[float]], sizes: Mapping[str, int]) -> float:
    """Return the size from which stagepipe is ahead of a pipe, on a straight line between the measured sizes."""
    gaps = [(nbytes, log(median(us[_FILLED, size]) / median(us[_PIPE, size]))) for size, nbytes in sizes.items()]
    (low, before), (high, after) = next(pair for pair in pairwise(gaps) if pair[0][1] > 0 >= pair[1][1])
    return exp(log(low) + (log(high) - log(low)) * before / (before - after))


def _label_plot(axes: Any, sizes: Mapping[str, int], crossover_bytes: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(700, 9e8)
    axes.xaxis.set_major_locator(FixedLocator(list(sizes.values())))
    axes.xaxis.set_minor_locator(NullLocator())
    labels = {nbytes: label.replace("KB", " KB").replace("MB", " MB") for label, nbytes in sizes.items()}
    axes.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: labels.get(int(nbytes), "")))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda us, _: format_ns(us * 1000)))
    axes.axvspan(700, crossover_bytes, color="#e9ecef", zorder=0)
    axes.annotate("Pipe is\nahead", (760, 1.6e5), va="top", color="#495057")
    axes.annotate("stagepipe is ahead of Pipe", (crossover_bytes * 1.2, 1.6e5), va="top", color="#d6336c")
    axes.set_xlabel("size of the array in an item")
    axes.set_ylabel("time of an item")
    axes.set_title("One hop between two processes: lower is better", fontsize=12, loc="left")
    axes.grid(visible=True, which="major", alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def main() -> None:
    """Replace the tables, and draw the plot."""
    README.write_text(replace_jobs(README.read_text()))
    MEASURED.write_text(replace_summary(replace_tables(MEASURED.read_text(), load("hop"), load("loader"))))
    draw_plot()


def replace_jobs(text: str) -> str:
    """Return README's text with the table of whole jobs."""
    made = "\n".join(make_job_table(Results(FIGURES / "peers.json")))
    return fill(text, "jobs", f"\n{made}\n")


def replace_summary(text: str) -> str:
    """Return the text of docs/measured.md with the summary of the committed figures."""
    made = "\n".join(make_summary(load("hop"), load("loader"), Results(FIGURES / "peers.json")))
    return fill(text, "summary", f"\n{made}\n")


if __name__ == "__main__":
    main()
