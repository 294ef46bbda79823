"""What was measured of each case, kept in results/, and the tables of docs/programs.md that are made from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common.page import fill, make_table
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "programs.md"
RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, str]
"""A line of a table: a text for each heading that it knows."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the page. `headings` are its columns, and each case makes rows of them."""

    name: str
    headings: Sequence[str]
    cases: Mapping[str, Callable[[], Sequence[Row]]]

    @property
    def path(self) -> Path:
        """Where its results are kept."""
        return RESULTS / f"{self.name}.json"

    def load(self) -> dict[str, Any]:
        """Return what is kept: by case, its rows and the day on which it was run."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def run(self, case: str) -> Sequence[Row]:
        """Run a case, keep its rows and return them."""
        rows = self.cases[case]()
        for row in rows:
            if unknown := set(row) - set(self.headings):
                raise ValueError(f"{case}: {sorted(unknown)} are no headings of the table {self.name}")
        kept = self.load() | {case: {"day": f"{datetime.now(UTC):%Y-%m-%d}", "rows": [dict(row) for row in rows]}}
        self.path.write_text(json.dumps({name: kept[name] for name in self.cases if name in kept}, indent=2) + "\n")
        return rows

    def render(self) -> Iterator[str]:
        """Yield the lines of the table, in Markdown."""
        kept = self.load()
        rows = [row for case in self.cases for row in kept.get(case, {"rows": ()})["rows"]]
        cells = ([row.get(heading, "").replace("|", "&#124;") for heading in self.headings] for row in rows)
        yield from make_table(self.headings, cells)
        days = sorted({each["day"] for each in kept.values()})
        yield f"\nRun on {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else "\nNot run yet."


def render_page(tables: Sequence[Table], page: str) -> str:
    """Return the page with all tables between their markers."""
    for table in tables:
        page = fill(page, table.name, "\n".join(table.render()))
    return page
