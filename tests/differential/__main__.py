"""Write the table of all cells: python -m tests.differential [--check]."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from tests.differential.cells import CELLS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compared.md"
_HEAD = """# Compared with other libraries

Check here whether stagepipe reads or writes your format as an independent library does. Tests run all {count} cells:
{equal} give equal values, {different} give a different value that the note explains and the test compares, and {error}
raise an error with the words of the note. No case loses or changes a value silently. `python -m tests.differential`
writes this page.
"""


def render() -> str:
    """Return the page."""
    counts = {outcome: sum(cell.outcome == outcome for cell in CELLS) for outcome in ("equal", "different", "error")}
    parts = [_HEAD.format(count=len(CELLS), **counts)]
    for group, cells in groupby(CELLS, key=lambda cell: cell.group):
        parts.append(f"\n## {group}\n\n| case | compared with | outcome | note |\n|---|---|---|---|\n")
        parts += [f"| {c.case} | {c.library} | {c.outcome} | {c.note.replace('|', '&#124;')} |\n" for c in cells]
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` say whether it is what the cells are."""
    page = render()
    if "--check" in arguments:
        return int(not PAGE.exists() or PAGE.read_text() != page)
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
