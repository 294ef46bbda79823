"""What was measured of each case, kept in results/, and the tables of docs/programs.md that are made from it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.common.page import fill, make_table
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "programs.md"
RESULTS = Path(__file__).parent / "results"
_DOCSTRING = re.compile(r'^ *"""(?:.|\n)*?"""$', re.MULTILINE)
_CHANGED = "measured with an earlier form of this case"

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
        """Return what is kept: by case, its rows, the day on which it was run, and the form that it had then."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def run(self, case: str) -> Sequence[Row]:
        """Run a case, keep its rows and return them."""
        rows = self.cases[case]()
        for row in rows:
            if unknown := set(row) - set(self.headings):
                raise ValueError(f"{case}: {sorted(unknown)} are no headings of the table {self.name}")
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        found = {"day": day, "form": find_form(self.cases[case]), "rows": [dict(row) for row in rows]}
        kept = self.load() | {case: found}
        self.path.write_text(json.dumps({name: kept[name] for name in self.cases if name in kept}, indent=2) + "\n")
        return rows

    def render(self) -> Iterator[str]:
        """Yield the lines of the table, in Markdown."""
        kept = self.load()
        rows = [row for case in self.cases if case in kept for row in self._mark(case, kept[case])]
        cells = ([row.get(heading, "").replace("|", "&#124;") for heading in self.headings] for row in rows)
        yield from make_table(self.headings, cells)
        days = sorted({each["day"] for each in kept.values()})
        yield f"\nRun on {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else "\nNot run yet."

    def _mark(self, case: str, kept: Mapping[str, Any]) -> Sequence[Row]:
        """Return the rows of a case; their notes say so if the case has changed since."""
        if kept.get("form") in {None, find_form(self.cases[case])}:
            return kept["rows"]
        return [{**row, "notes": "; ".join(filter(None, [row.get("notes"), _CHANGED]))} for row in kept["rows"]]


def find_form(case: Callable[[], Sequence[Row]]) -> str:
    """Return a digest of a case: of the settings of a `partial`, or of the code of the module with the function."""
    if isinstance(case, partial):
        form = re.sub(r" at 0x[0-9a-f]+", "", repr(case)).replace(str(ROOT), "")
    else:
        form = _DOCSTRING.sub("", inspect.getsource(inspect.getmodule(case)))  # type: ignore[arg-type]
    return sha256(form.encode()).hexdigest()[:12]


def render_page(tables: Sequence[Table], page: str) -> str:
    """Return the page with all tables between their markers."""
    for table in tables:
        page = fill(page, table.name, "\n".join(table.render()))
    return page
