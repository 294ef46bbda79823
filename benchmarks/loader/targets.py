"""The project's targets for the figures, and whether they are met. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.common.figures import Estimate, ratio
from benchmarks.common.targets import Target, is_met
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
)
from benchmarks.loader.rounds import Row


class Figures:
    """The rows of a run, by part and contestant."""

    def __init__(self, rows: list[Row]) -> None:
        """Index the rows."""
        self._rows = {(row.part, row.contestant): row for row in rows}

    def times(self, part: str, of: str, to: str, name: str) -> Estimate | None:
        """Return the figure of `of` divided by that of `to`, or None if one of them was not measured."""
        first, second = self._rows.get((part, of)), self._rows.get((part, to))
        return ratio(first.values(name), second.values(name)) if first and second else None

    def bare_bytes(self) -> float:
        """Return the memory of a process that has imported torch and stagepipe, and has created nothing yet."""
        return median([value for row in self._rows.values() for value in row.values("bare_pss_bytes")])

    def best(self, part: str, name: str, choose: Callable[..., str]) -> str:
        """Return the measured DataLoader with the smallest (`min`) or largest (`max`) median, or ''."""
        medians = {
            peer: median(self._rows[part, peer].values(name))
            for peer in DATALOADERS[part]
            if (part, peer) in self._rows
        }
        return choose(medians, key=medians.__getitem__) if medians else ""


def targets(rows: list[Row]) -> Iterator[Target]:
    """Judge all targets."""
    figures = Figures(rows)
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
