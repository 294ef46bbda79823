"""The results as tables and verdicts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from benchmarks.common.figures import Estimate, estimate, ratio
from benchmarks.peers.contestants import CONTESTANTS, OURS
from benchmarks.peers.results import Results

_CLOSE = 0.95
_MAX_CPU = 1.15
_HEADER = ("", "items/s", "times stagepipe", "CPU for an item", "first item", "p99 wait", "memory (PSS)", "rounds")

Rounds = Mapping[int, float]


def make_table(results: Results, job: str) -> Iterator[str]:
    """Yield a table in Markdown, the fastest first; at the end those without figures, with the reason."""
    found = results.collect(job)
    yield "| " + " | ".join(_HEADER) + " |"
    yield "|---|" + "---:|" * (len(_HEADER) - 1)
    timed = [name for name in found if found[name]["items_per_s"]]
    for name in sorted(timed, key=lambda name: -median(found[name]["items_per_s"].values())):
        figures = found[name]
        rate, cpu = figures["items_per_s"], figures["cpu_s_per_item"]
        times = "" if name == OURS or OURS not in timed else compare(rate, found[OURS]["items_per_s"]).text()
        cells = (
            f"**{name}**" if name == OURS else name,
            f"{median(rate.values()):,.0f}" if median(rate.values()) >= 100 else f"{median(rate.values()):.1f}",
            times,
            format_seconds(median(cpu.values())),
            format_seconds(median(figures["first_s"].values())),
            format_seconds(median(figures["p99_wait_s"].values())),
            f"{max(figures['pss_bytes'].values()) / 1e6:,.0f} MB" if figures["pss_bytes"] else "",
            str(len(rate)),
        )
        yield "| " + " | ".join(cells) + " |"
    for name in CONTESTANTS:
        if reason := results.find_reason(job, name):
            yield f"| {name} | *{reason}* |" + " |" * (len(_HEADER) - 2)


def compare(first: Rounds, second: Rounds) -> Estimate:
    """Return the ratio of two contestants over the rounds that both had."""
    both = sorted(first.keys() & second.keys())
    return ratio([first[number] for number in both], [second[number] for number in both])


def judge(results: Results, job: str) -> Iterator[str]:
    """Yield what the figures say of stagepipe: items/s beside the fastest, CPU beside the cheapest."""
    found = {name: figures for name, figures in results.collect(job).items() if figures["items_per_s"]}
    if OURS not in found or len(found) == 1:
        return
    others = [name for name in found if name != OURS]
    fastest = max(others, key=lambda name: median(found[name]["items_per_s"].values()))
    rate = compare(found[OURS]["items_per_s"], found[fastest]["items_per_s"])
    yield f"{job}: {rate.text()} of the items/s of {fastest}: {_say(rate, _CLOSE)} (target: at least {_CLOSE})"
    cheapest = min(others, key=lambda name: median(found[name]["cpu_s_per_item"].values()))
    cpu = compare(found[cheapest]["cpu_s_per_item"], found[OURS]["cpu_s_per_item"])
    yield (
        f"{job}: {estimate_inverse(cpu).text()} of the CPU of {cheapest}: {_say(cpu, 1 / _MAX_CPU)} "
        f"(target: at most {_MAX_CPU})"
    )


def estimate_inverse(value: Estimate) -> Estimate:
    """Return the estimate of 1 / x."""
    return Estimate(1 / value.value, 1 / value.high, 1 / value.low, value.coverage)


def _say(value: Estimate, limit: float) -> str:
    if value.low >= limit:
        return "met"
    return "missed" if value.high < limit else "undecided"


def format_seconds(value: float) -> str:
    """Format with three digits and a unit.

    >>> [format_seconds(value) for value in (1.234, 0.0456, 0.00000789)]
    ['1.23 s', '45.6 ms', '7.89 us']
    """
    factor, unit = next((entry for entry in ((1.0, "s"), (1e-3, "ms")) if value >= entry[0]), (1e-6, "us"))
    return f"{value / factor:.3g} {unit}"


def count_rounds(rounds: int) -> str:
    """Describe what the brackets hold."""
    coverage = estimate([1.0] * rounds).coverage
    return f"medians of {rounds} rounds; brackets hold the {coverage:.0%} interval of the median"
