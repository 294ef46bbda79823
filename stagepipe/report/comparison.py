"""Compares two runs: their differences, and whether these exceed the noise within each run.

A report is one run. Its noise is estimated from means of blocks of its steady state: neighbouring intervals are alike,
so single intervals would make the noise look too small. Differences between runs, such as another load of the machine,
are invisible to this method; the comparison says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final, NamedTuple

from stagepipe.report.model import Report
from stagepipe.report.utilization import format_worker_numbers, list_worker_numbers

_BLOCKS: Final = 8
_MIN_INTERVALS: Final = 2 * _BLOCKS
_T_95_PERCENT: Final = 2.365
"""Student's t for 95 % with `_BLOCKS - 1` degrees of freedom: the cautious choice for two runs."""


class Difference(NamedTuple):
    """A figure of two runs. `noise` is the half-width of the 95 % interval of `ratio`; None: unknown."""

    name: str
    first: float
    second: float
    noise: float | None = None

    @property
    def ratio(self) -> float:
        """The second figure divided by the first; 0 if the first is 0."""
        return self.second / self.first if self.first else 0.0

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the figures differ by more than the noise; None: unknown."""
        return None if self.noise is None or not self.first else abs(self.ratio - 1) > self.noise


class Comparison(NamedTuple):
    """A comparison of two runs. It has the stages and hops that both runs have; `notes` list other differences."""

    rate: Difference
    stages: tuple[Difference, ...]
    hops: tuple[Difference, ...]
    notes: tuple[str, ...]
    sentence: str


def compare_runs(first: Report, second: Report) -> Comparison:
    """Compare the rate, the time per item of each stage, and the cost of each hop."""
    rate = Difference("samples/s", first.run.items_per_s, second.run.items_per_s, _estimate_noise(first, second))
    runs = ({stage.name: stage.run_ns.mean for stage in report.stages} for report in (first, second))
    costs = ({f"{hop.source} → {hop.target}": hop.cost_ns.p50 for hop in report.hops} for report in (first, second))
    stages, hops = (_pair(*maps) for maps in (tuple(runs), tuple(costs)))
    return Comparison(rate, stages, hops, tuple(_find_notes(first, second)), _make_sentence(rate))


def _pair(first: dict[str, int], second: dict[str, int]) -> tuple[Difference, ...]:
    return tuple(Difference(name, value, second[name]) for name, value in first.items() if name in second)


def _estimate_noise(first: Report, second: Report) -> float | None:
    """Return the half-width of the 95 % interval of the ratio of the rates; None if a series is missing or short."""
    errors = [_estimate_relative_error(report) for report in (first, second)]
    known = [error for error in errors if error is not None]
    if len(known) < len(errors) or not first.run.items_per_s:
        return None
    return _T_95_PERCENT * math.hypot(*known) * second.run.items_per_s / first.run.items_per_s


def _estimate_relative_error(report: Report) -> float | None:
    """Return the relative standard error of the rate, from block means of the last process's rates."""
    if not report.series.stages:
        return None
    rates = report.series.stages[-1].items_per_s
    pairs = zip(report.series.times_ns, rates, strict=False)
    steady = [rate for time_ns, rate in pairs if time_ns > report.run.first_item_ns][1:-1]  # without start-up and drain
    if len(steady) < _MIN_INTERVALS:
        return None
    means = _compute_block_means(steady)
    mean = fmean(means)
    return stdev(means) / math.sqrt(_BLOCKS) / mean if mean > 0 else None


def _compute_block_means(values: Sequence[float]) -> list[float]:
    size = len(values) // _BLOCKS
    return [fmean(values[index * size : (index + 1) * size]) for index in range(_BLOCKS)]


def _find_notes(first: Report, second: Report) -> list[str]:
    notes = []
    if first.name != second.name:
        notes.append(f"the pipelines have different names: {first.name}, {second.name}")
    if first.config_sha256 != second.config_sha256:
        notes.append("the configs differ")
    if first.host != second.host:
        notes.append("the machines or the versions of packages differ")
    notes += [
        f"{stage} had {format_worker_numbers(numbers)} workers in the {place} run"
        for place, report in (("first", first), ("second", second))
        for stage, numbers in list_worker_numbers(report.worker_changes).items()
    ]
    notes += [f"one run {report.run.status}" for report in (first, second) if report.run.status != "finished"]
    names = [{stage.name for stage in report.stages} for report in (first, second)]
    notes += [
        f"only in the {place} run: {name}"
        for place, own, other in (("first", names[0], names[1]), ("second", names[1], names[0]))
        for name in sorted(own - other)
    ]
    return notes


def _make_sentence(rate: Difference) -> str:
    if not rate.first:
        return "Cannot tell: the first run has no rate."
    change = f"The second run is {abs(rate.ratio - 1):.1%} {'faster' if rate.ratio >= 1 else 'slower'}"
    if rate.noise is None:
        return (
            f"{change}; cannot tell whether that is noise: both runs need {_MIN_INTERVALS} intervals of steady state."
        )
    beyond = "beyond" if rate.is_beyond_noise else "within"
    return (
        f"{change}, {beyond} the noise within the runs (±{rate.noise:.1%}, 95 %). The load of the machine may differ "
        "between two runs: repeat both to be sure."
    )
