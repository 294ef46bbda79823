"""E3's table, from the JSON of benchmarks/crossover. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.published.page.forms import table

_STAGEPIPE = "stagepipe"


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Format the microseconds per transfer and the targets."""
    by_size: dict[int, dict[str, float]] = {}
    for row in document["rows"]:
        by_size.setdefault(row["d"], {})[row["contestant"]] = median(row["us"])
    names = list(next(iter(by_size.values())))
    header = ("d", "bytes", *(f"**{name}**" if name.startswith(_STAGEPIPE) else name for name in names))
    body = ([str(d), f"{4 * d * d:,}", *(f"{us[name]:,.1f}" for name in names)] for d, us in by_size.items())
    yield ""
    yield "Microseconds per transfer, measured from the request:"
    yield from table(header, body)
    yield ""
    for target in document["targets"]:
        verdict = {True: "met", False: "**missed**", None: "not measured"}[target["met"]]
        yield f"- {target['text']}: {verdict}; {target['measured']}"
