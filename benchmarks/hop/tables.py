"""The printed tables: one for each size, and stagepipe's own figures of its hops. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.common.figures import Estimate, estimate, ratio
from benchmarks.hop.schedule import BASE, Row


def size_table(rows: list[Row]) -> Iterator[str]:
    """Format the rows of one size, untouched and touched side by side."""
    untouched = {row.contestant: row for row in rows if not row.touched}
    touched = {row.contestant: row for row in rows if row.touched}
    first = rows[0]
    yield f"\n{first.size}: dict of id, label and {first.nbytes:,} bytes of image"
    yield f"{'':21}| {'untouched':^46}| {'touched by the receiver':^46}"
    header = f"{'us':>9} {'CPU us':>9}  {'times ' + BASE:<26}"
    yield f"{'':21}|{header}|{header}"
    for name in untouched:
        cells = [_cells(rows_by_name[name], rows_by_name.get(BASE)) for rows_by_name in (untouched, touched)]
        yield f"{name:21}|{cells[0]}|{cells[1]}".rstrip()


def _cells(row: Row, base: Row | None) -> str:
    against = ratio(row.us, base.us).text() if base is not None and base is not row else "1" if base is row else ""
    return f"{median(row.us):9.1f} {median(row.cpu_us):9.1f}  {against:<26}"


def hop_table(reports: dict[str, Any]) -> Iterator[str]:
    """Format what stagepipe reports about its hops: the median of each phase in us, including the warm-up."""
    if not reports:
        return
    for name, summary in reports.items():
        for hop in summary["hops"]:
            phases = ", ".join(
                f"{phase.removesuffix('_ns')} {p['p50'] / 1000:.1f}" for phase, p in hop["phases_ns"].items()
            )
            yield f"  {name}: {hop['from']} -> {hop['to']}: cost {hop['cost_ns']['p50'] / 1000:.1f} us ({phases})"


def describe(rounds: int) -> str:
    """Explain how to read the figures."""
    interval: Estimate = estimate([1.0] * rounds)
    return (
        f"Medians of {rounds} rounds. Ratios are taken pair by pair within a round; brackets hold the sign-test "
        f"interval of their median, which contains the true median with probability {interval.coverage:.3f}."
    )
