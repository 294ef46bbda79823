"""Write the table of all cells: python -m tests.differential [--check]."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from tests.differential.cells import CELLS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compared.md"
_HEAD = """# Compared with other libraries

What stagepipe reads and writes, beside the same by an independent library: {count} cells, of which a test runs each.
{equal} are equal, {different} differ as the note says, in a value that is compared too, and {error} are refused with an
error that has the words of the note. Nothing else is allowed: no cell may lose or change a value without a word.
`python -m tests.differential` makes this page.
"""


def render() -> str:
    """Return the page."""
    counts = {outcome: sum(cell.outcome == outcome for cell in CELLS) for outcome in ("equal", "different", "error")}
    parts = [_HEAD.format(count=len(CELLS), **counts)]
    for group, cells in groupby(CELLS, key=lambda cell: cell.group):
        parts.append(f"\n## {group}\n\n| case | beside | outcome | note |\n|---|---|---|---|\n")
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
