"""What is printed: a table a size, stagepipe's own account of its hops."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from hop_.schedule import BASE, Row
from side_by_side.figures import Estimate, estimate, ratio


def size_table(rows: list[Row]) -> Iterator[str]:
    """The rows of one size, untouched and touched beside each other."""
    untouched = {row.contestant: row for row in rows if not row.touched}
    touched = {row.contestant: row for row in rows if row.touched}
    first = rows[0]
    yield f"\n{first.size}: dict of id, label and {first.nbytes:,} bytes of image"
    yield f"{'':21}| {'untouched':^46}| {'touched by the receiver':^46}"
    head = f"{'us':>9} {'CPU us':>9}  {'times ' + BASE:<26}"
    yield f"{'':21}|{head}|{head}"
    for name in untouched:
        cells = [_cells(of[name], of.get(BASE)) for of in (untouched, touched)]
        yield f"{name:21}|{cells[0]}|{cells[1]}".rstrip()


def _cells(row: Row, base: Row | None) -> str:
    against = ratio(row.us, base.us).text() if base is not None and base is not row else "1" if base is row else ""
    return f"{median(row.us):9.1f} {median(row.cpu_us):9.1f}  {against:<26}"


def hop_table(reports: dict[str, Any]) -> Iterator[str]:
    """What stagepipe says of its hops, in us: the median of each phase, warm-up included."""
    if not reports:
        return
    for name, found in reports.items():
        for hop in found["hops"]:
            phases = ", ".join(
                f"{phase.removesuffix('_ns')} {p['p50'] / 1000:.1f}" for phase, p in hop["phases_ns"].items()
            )
            yield f"  {name}: {hop['from']} -> {hop['to']}: cost {hop['cost_ns']['p50'] / 1000:.1f} us ({phases})"


def describe(rounds: int) -> str:
    """How to read the figures."""
    how: Estimate = estimate([1.0] * rounds)
    return (
        f"Medians of {rounds} rounds. Ratios are taken pair by pair within a round; in brackets the sign-test "
        f"interval of their median, which holds the true one with probability {how.coverage:.3f}."
    )
