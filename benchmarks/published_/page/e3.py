"""E3's table, of what benchmarks/crossover.py wrote. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from published_.page.forms import table

_OURS = "stagepipe"


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Microseconds a transfer, and its promises."""
    by_size: dict[int, dict[str, float]] = {}
    for row in found["rows"]:
        by_size.setdefault(row["d"], {})[row["contestant"]] = median(row["us"])
    names = list(next(iter(by_size.values())))
    head = ("d", "bytes", *(f"**{name}**" if name.startswith(_OURS) else name for name in names))
    body = ([str(d), f"{4 * d * d:,}", *(f"{us[name]:,.1f}" for name in names)] for d, us in by_size.items())
    yield ""
    yield "Microseconds a transfer, from the request on:"
    yield from table(head, body)
    yield ""
    for target in found["targets"]:
        verdict = {True: "held", False: "**missed**", None: "not measured"}[target["met"]]
        yield f"- {target['text']}: {verdict}; {target['measured']}"
