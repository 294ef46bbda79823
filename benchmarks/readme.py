"""Write the table of README.md that sums up the figures of docs/measured.md and docs/peers.md.

python -m benchmarks.readme
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.common.figures import Estimate, estimate, quotient
from benchmarks.common.page import fill, format_row
from benchmarks.common.turn import ROOT
from benchmarks.hop.tables import LOOP_BASE, find_us
from benchmarks.loader.contest import (
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
from benchmarks.loader.tables import collect
from benchmarks.peers.contestants import OURS
from benchmarks.peers.results import Results

_FIGURES = ROOT / "docs" / "benchmarks"
_FILLED, _PIPE = "stagepipe filled", "Pipe"
_IMAGES = {"64KB": "64 KB", "1.2MB": "1.2 MB", "8MB": "8 MB"}
_ROUNDED_FROM = 10.0
_ONE_ARRAY = ("SharedMemory reused", "iceoryx2")
"""They hold one array at a time, of a size that both sides know. All others carry any object."""
_NO_HOP = ("stagepipe", "memcpy")
"""How the names of contestants begin that are ours, or that only copy."""


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
    yield "| | stagepipe | beside it | stagepipe is |"
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


def main() -> None:
    """Replace the table of README.md."""
    readme = ROOT / "README.md"
    readme.write_text(replace_summary(readme.read_text()))


def replace_summary(text: str) -> str:
    """Return `text` with the table of the committed figures."""
    hop, loader = (json.loads((_FIGURES / name).read_text()) for name in ("hop.json", "loader.json"))
    made = "\n".join(make_summary(hop, loader, Results(_FIGURES / "peers.json")))
    return fill(text, "summary", f"\n{made}\n")


if __name__ == "__main__":
    main()
