"""What the figures must be, by the project's own promise, and whether they are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from loader_.contest import (
    BATCH,
    COLLATE,
    COPIED,
    DATALOADERS,
    FILLED,
    FORKED,
    FUSED,
    HANDED,
    IN_PLACE,
    MODELS,
    PLAIN,
    QUICKSTART,
    SHARED,
    SPAWNED,
    WAYS,
)
from loader_.rounds import Row
from side_by_side.figures import Estimate, ratio
from side_by_side.targets import Target

_UNMEASURED = "not measured in this run"


class Figures:
    """All rows of a run."""

    def __init__(self, rows: list[Row]) -> None:
        """By part and contestant."""
        self._rows = {(row.part, row.contestant): row for row in rows}

    def times(self, part: str, of: str, to: str, name: str) -> Estimate | None:
        """How many times `to`'s figure the contestant `of` has; None where one of them was not measured."""
        first, second = self._rows.get((part, of)), self._rows.get((part, to))
        return ratio(first.values(name), second.values(name)) if first and second else None

    def bare_bytes(self) -> float:
        """Of a process that has imported torch and stagepipe, and has made nothing yet."""
        return median([value for row in self._rows.values() for value in row.values("bare_pss_bytes")])

    def best(self, part: str, name: str, choose: Callable[..., str]) -> str:
        """The DataLoader with the smallest (`min`) or largest (`max`) median of all that were measured; or ''."""
        medians = {
            peer: median(self._rows[part, peer].values(name))
            for peer in DATALOADERS[part]
            if (part, peer) in self._rows
        }
        return choose(medians, key=medians.__getitem__) if medians else ""


def targets(rows: list[Row]) -> Iterator[Target]:
    """All of them, in the order of the promise."""
    figures = Figures(rows)
    yield _batch(figures, "collated by Batch", BATCH, 5, COPIED)
    yield _batch(figures, "built in place", IN_PLACE, 20, FILLED)
    yield _against_best(figures, "CPU seconds an item, of the best DataLoader's", "cpu_s_per_item", 0.9)
    yield _against_best(figures, "items a second, of the best DataLoader's", "items_per_s", 1.0)
    yield _memory(figures)


def _batch(figures: Figures, how: str, name: str, least: float, beside: str) -> Target:
    text = f"a batch {how} takes at least {least:.0f} times less than DataLoader's"
    found = figures.times(COLLATE, name, "DataLoader", "items_per_s")
    if found is None:
        return Target(text, _UNMEASURED, None)
    other = figures.times(COLLATE, beside, "DataLoader", "items_per_s")
    cpu = figures.times(COLLATE, "DataLoader", name, "cpu_s_per_item")
    measured = f"{found.text(1)} times less{_also(f'{cpu.text(1)} times less CPU' if cpu else '')}"
    return Target(text, measured + _also(f"{beside}: {other.text(1)}" if other else ""), found.value >= least)


def _against_best(figures: Figures, text: str, name: str, limit: float) -> Target:
    most = limit < 1.0
    text = f"{text}: {'at most' if most else 'at least'} {limit}"
    peer = figures.best(QUICKSTART, name, min if most else max)
    found = figures.times(QUICKSTART, PLAIN, peer, name)
    if found is None:
        return Target(text, _UNMEASURED, None)
    other = figures.times(QUICKSTART, FUSED, peer, name)
    met = found.value <= limit if most else found.value >= limit
    measured = f"{found.text()} of {peer}" + _also(f"{FUSED}: {other.text()}" if other else "")
    return Target(text, measured, met)


def _memory(figures: Figures) -> Target:
    limit, name = 0.45, "pss_bytes"
    text = f"memory of three models, three ways parallel, of spawned workers': at most {limit}"
    found = figures.times(MODELS, WAYS[2], SPAWNED[2], name)
    if found is None:
        return Target(text, _UNMEASURED, None)
    beside = {peer: figures.times(MODELS, WAYS[2], peer, name) for peer in (FORKED, SHARED, HANDED)}
    others = "".join(_also(f"of {peer}: {each.text()}") for peer, each in beside.items() if each)
    bare = f"; torch takes {figures.bare_bytes() / 1e6:.0f} MB in each process that has done no more than import it"
    return Target(text, found.text() + others + bare, found.value <= limit)


def _also(text: str) -> str:
    return f"; {text}" if text else ""
