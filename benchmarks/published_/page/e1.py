"""E1's tables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from published_.e1.protocol import PARTS
from published_.page.forms import NOTHING, beside, by_time, duration, megabytes, name, seconds, spread, table
from published_.page.verdicts import reference
from published_.summary import Row
from published_.write_ups import E1_RECEIVE_AND_RESTORE_S

_COMPARED = ("slave receive", "slave restore")


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """The totals, then all parts."""
    payload = next(iter(rows[0].figures))
    ordered, ours = by_time(rows, payload), reference("E1", list(rows))
    head = (
        "contestant",
        "published: slave's receive and restore",
        "the same here",
        "total",
        "times stagepipe",
        "CPU",
        "peak memory",
    )
    yield from table(head, (_total(row, ours, payload) for row in ordered))
    yield ""
    yield "The parts, medians:"
    yield from table(("contestant", *PARTS), ([name(row), *_cells(row, payload)] for row in ordered))


def _total(row: Row, ours: Row | None, payload: str) -> list[str]:
    figure, parts = row.figures[payload], parts_ns(row, payload)
    return [
        name(row),
        seconds(E1_RECEIVE_AND_RESTORE_S.get(row.contestant.name)),
        duration(sum(parts[part] for part in _COMPARED)) if parts.keys() >= set(_COMPARED) else NOTHING,
        spread(figure),
        beside(row, ours, payload),
        duration(figure.cpu_ns) if figure.ns else NOTHING,
        megabytes(figure.peak_bytes),
    ]


def parts_ns(row: Row, payload: str) -> dict[str, float]:
    """By the contestant's own stamps, and of stagepipe by its report."""
    return row.figures[payload].parts_ns or next((told["parts_ns"] for told in row.told), {})


def _cells(row: Row, payload: str) -> list[str]:
    parts = parts_ns(row, payload)
    return [duration(parts[part]) if part in parts else NOTHING for part in PARTS]
