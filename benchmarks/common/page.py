"""Tables in Markdown, the parts of a page that are made, and the plots. The rest of a page is written by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


def make_table(titles: Sequence[str], rows: Iterable[Sequence[str]], rule: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a table in Markdown. `rule` stands below the titles, without it all is aligned to the left.

    >>> list(make_table(["d", "us"], [["2", "9"]]))
    ['| d | us |', '|---|---|', '| 2 | 9 |']
    """
    yield format_row(titles)
    yield f"|{'|'.join(rule or ['---'] * len(titles))}|"
    yield from map(format_row, rows)


def format_row(cells: Sequence[str]) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def fill(page: str, name: str, made: str) -> str:
    r"""Put `made` between the two markers of a name. Raise ValueError if the page lacks them.

    >>> fill("<!-- E1 --> old <!-- /E1 -->", "E1", "new")
    '<!-- E1 -->\nnew\n<!-- /E1 -->'
    """
    pair = re.compile(rf"(<!-- {re.escape(name)} -->).*(<!-- (?:/|end ){re.escape(name)} -->)", re.DOTALL)
    if not pair.search(page):
        message = f"the page has no markers <!-- {name} --> and <!-- /{name} -->; add them where the table belongs"
        raise ValueError(message)
    return pair.sub(lambda found: f"{found[1]}\n{made}\n{found[2]}", page)


def save_plot(drawing: Any, *paths: Path) -> None:
    """Write a figure of matplotlib in the format of each suffix. The same figures give the same file."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "stagepipe"}):  # its text can be searched
        for path in paths:
            drawing.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
