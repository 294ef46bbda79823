"""The tables in Markdown, for the terminal and for docs/measured.md, and the targets for the figures. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.common.figures import Estimate, Target, count_waits, estimate, format_waits, is_met, pool_waits, ratio
from benchmarks.common.page import Document, divide, list_targets, make_caption, make_table
from benchmarks.loader.contest import (
    BATCH,
    COLLATE,
    COPIED,
    DATALOADER,
    DATALOADERS,
    FILLED,
    FORKED,
    FORKED_PRELOADED,
    FUSED,
    HEADER_ONLY,
    MODELS,
    PLAIN,
    QUICKSTART,
    SPAWNED,
    SPAWNED_PRELOADED,
    THREE_PROCESSES,
    TWO_WORKERS,
)

_TARGETS = {
    "a batch ": COLLATE,
    "CPU seconds per item ": QUICKSTART,
    "items per second ": QUICKSTART,
    "memory of three models ": MODELS,
}
"""The part of a target, by how its text begins."""


def find_part(text: str) -> str:
    """Return the part that a target belongs to.

    >>> find_part("a batch filled in place is at least 20 times faster than DataLoader's")
    'collate'
    """
    return next(part for begin, part in _TARGETS.items() if text.startswith(begin))


def collect(document: Document, part: str, figure: str) -> dict[str, list[float]]:
    """Return a figure of each round, by contestant of a part."""
    rows = (row for row in document["rows"] if row["part"] == part)
    return {row["contestant"]: [turn[figure] for turn in row["answers"]] for row in rows}


def make_loader_table(document: Document, part: str) -> Iterator[str]:
    """Yield the table of a part of the comparison with DataLoader."""
    rows = [row for row in document["rows"] if row["part"] == part]
    rows.sort(key=lambda row: row["contestant"] != FILLED)
    is_collate = part == COLLATE
    batch = next(job["batch"] for job in document["jobs"] if job["part"] == part) if is_collate else 1

    def find_speeds(rates: list[float]) -> list[float]:
        return [1000 * batch / rate for rate in rates] if is_collate else rates

    speeds = {name: find_speeds(rates) for name, rates in collect(document, part, "items_per_s").items()}
    peer = speeds.get(DATALOADER) if is_collate else None

    def make_row(row: Document) -> list[str]:
        columns = {key: [turn[key] for turn in row["answers"]] for key in row["answers"][0]}
        own = speeds[row["contestant"]]
        return [
            row["contestant"],
            estimate(own).text(1),
            *([divide(peer, own, 1)] if peer else []),
            estimate([1000 * batch * value for value in columns["cpu_s_per_item"]]).text(),
            f"{median(columns['first_batch_s']):.2f} s",
            *([f"{1000 * median(columns['second_first_s']):.0f} ms"] if part == QUICKSTART else []),
            format_waits(pool_waits(map(count_waits, columns["waits_s"]))),
            f"{median(columns['life_cpu_s']):.1f} s",
            f"{median(columns['pss_bytes']) / 1e6:,.0f} MB",
        ]

    cost = ("ms a batch", "CPU ms") if is_collate else ("items/s", "CPU ms of an item")
    times = (f"times faster than {DATALOADER}",) if peer else ()
    later = ("second epoch's first batch",) if part == QUICKSTART else ()
    rest = ("wait for a batch, all rounds", "CPU of the whole turn", "memory (PSS)")
    yield from make_table(("", cost[0], *times, cost[1], "first batch", *later, *rest), map(make_row, rows))
    yield from make_caption(document, len(speeds[rows[0]["contestant"]]))
    yield from list_targets(document, lambda text: find_part(text) == part)


def report_lines(document: Document, part: str) -> Iterator[str]:
    """Format stagepipe's own reports of the last round."""
    for row in document["rows"]:
        for line in row["answers"][-1]["told"] if row["part"] == part else ():
            yield f"  {row['contestant']}: {line}"


class Figures:
    """The figures of a run, by part and contestant."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def times(self, part: str, of: str, to: str, name: str) -> Estimate | None:
        """Return the figure of `of` divided by that of `to`, or None if one of them was not measured."""
        found = collect(self._document, part, name)
        return ratio(found[of], found[to]) if of in found and to in found else None

    def bare_bytes(self) -> float:
        """Return the memory of a process that has imported torch and stagepipe, and has created nothing yet."""
        return median(float(turn["bare_pss_bytes"]) for row in self._document["rows"] for turn in row["answers"])

    def best(self, part: str, name: str, choose: Callable[..., str]) -> str:
        """Return the measured DataLoader with the smallest (`min`) or largest (`max`) median, or ''."""
        found = collect(self._document, part, name)
        medians = {peer: median(found[peer]) for peer in DATALOADERS[part] if peer in found}
        return choose(medians, key=medians.__getitem__) if medians else ""


def targets(document: Document) -> Iterator[Target]:
    """Judge all targets."""
    figures = Figures(document)
    yield _batch(figures, "collated by Batch", BATCH, 5, COPIED)
    yield _batch(figures, "filled in place", FILLED, 20, HEADER_ONLY)
    yield _against_best(figures, "CPU seconds per item relative to the best DataLoader", "cpu_s_per_item", 0.9)
    yield _against_best(figures, "items per second relative to the best DataLoader", "items_per_s", 1.0)
    yield _memory(figures)


def _batch(figures: Figures, how: str, name: str, min_ratio: float, variant: str) -> Target:
    text = f"a batch {how} is at least {min_ratio:.0f} times faster than DataLoader's"
    times_faster = figures.times(COLLATE, name, DATALOADER, "items_per_s")
    if times_faster is None:
        return Target(text)
    variant_times_faster = figures.times(COLLATE, variant, DATALOADER, "items_per_s")
    cpu = figures.times(COLLATE, DATALOADER, name, "cpu_s_per_item")
    measured = f"{times_faster.text(1)} times faster{_append(f'{cpu.text(1)} times less CPU' if cpu else '')}"
    measured += _append(f"{variant}: {variant_times_faster.text(1)}" if variant_times_faster else "")
    of_two = figures.times(COLLATE, name, TWO_WORKERS, "items_per_s")
    measured += _append(f"{of_two.text(1)} times faster than {TWO_WORKERS}" if of_two else "")
    return Target(text, measured, is_met(times_faster, at_least=min_ratio))


def _against_best(figures: Figures, text: str, name: str, limit: float) -> Target:
    is_maximum = limit < 1.0
    text = f"{text}: {'at most' if is_maximum else 'at least'} {limit}"
    peer = figures.best(QUICKSTART, name, min if is_maximum else max)
    relative = figures.times(QUICKSTART, PLAIN, peer, name)
    if relative is None:
        return Target(text)
    fused_relative = figures.times(QUICKSTART, FUSED, peer, name)
    met = is_met(relative, at_most=limit) if is_maximum else is_met(relative, at_least=limit)
    measured = f"{relative.text()} of {peer}" + _append(f"{FUSED}: {fused_relative.text()}" if fused_relative else "")
    return Target(text, measured, met)


def _memory(figures: Figures) -> Target:
    limit, name = 0.45, "pss_bytes"
    text = f"memory of three models in three processes relative to spawned workers: at most {limit}"
    relative = figures.times(MODELS, THREE_PROCESSES, SPAWNED, name)
    if relative is None:
        return Target(text)
    relative_to = {
        peer: figures.times(MODELS, THREE_PROCESSES, peer, name)
        for peer in (FORKED, FORKED_PRELOADED, SPAWNED_PRELOADED)
    }
    others = "".join(_append(f"of {peer}: {estimate.text()}") for peer, estimate in relative_to.items() if estimate)
    bare = f"; torch takes {figures.bare_bytes() / 1e6:.0f} MB in each process that only imports it"
    return Target(text, relative.text() + others + bare, is_met(relative, at_most=limit))


def _append(text: str) -> str:
    return f"; {text}" if text else ""
