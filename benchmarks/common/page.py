"""Tables in Markdown, the generated parts of a page, and the plots. The rest of a page is written by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.command import machine_line
from benchmarks.common.figures import VERDICTS, estimate, find_coverage, quotient

Document = dict[str, Any]
"""The JSON of a run."""


def make_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, left: int | None = None) -> Iterator[str]:
    """Yield the lines of a table in Markdown. With `left`, the columns after this number are aligned to the right.

    >>> list(make_table(["d", "us"], [["2", "9"]]))
    ['| d | us |', '|---|---|', '| 2 | 9 |']
    """
    yield format_row(titles)
    texts = len(titles) if left is None else left
    yield f"|{'|'.join(['---'] * texts + ['---:'] * (len(titles) - texts))}|"
    yield from map(format_row, rows)


def format_row(cells: Sequence[str]) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def divide(numerators: Sequence[float] | None, denominators: Sequence[float] | None, digits: int = 2) -> str:
    """Format the quotient of the displayed medians; "1" for a contestant and itself, "" if one was not measured."""
    if not numerators or not denominators:
        return ""
    if numerators is denominators:
        return "1"
    return quotient(estimate(numerators), estimate(denominators)).text(digits)


def make_caption(document: Document, rounds: int, note: str = "") -> Iterator[str]:
    """Yield the lines below a table: its rounds, the meaning of the brackets, the command and the machine."""
    coverage = 100 * find_coverage(rounds)
    yield ""
    yield f"Medians of {rounds} rounds{note}; brackets: {coverage:.0f} % interval of the median. A ratio divides"
    yield "two medians; its interval goes from the lowest to the highest quotient of their intervals."
    yield f"`{document['command']}`, {machine_line(document['machine'])}."


def list_targets(document: Document, belongs: Callable[[str], bool]) -> Iterator[str]:
    """Yield a line for each target of the run whose text belongs to the table, shortened."""
    targets = [target for target in document.get("targets", ()) if belongs(target["text"])]
    if targets:
        yield from ("", "Targets of the run, whose ratios are taken round by round:", "")
    for target in targets:
        verdict = VERDICTS[target["met"]] if target["measured"] else "not measured"
        measured = re.split(r"; | \(", target["measured"])[0]
        yield f"- {verdict}: {target['text']}{f': {measured}' if measured else ''}"


def list_missing(document: Document, known: Container[str]) -> Iterator[str]:
    """Yield a line that names the contestants of the table that this machine could not run."""
    if missing := [name for name in document.get("missing", ()) if name in known]:
        yield from ("", f"Not in this run, because their packages were not installed: {', '.join(missing)}.")


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
    """Write a matplotlib figure in the format of each suffix. The same figures give the same file."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "stagepipe"}):  # text stays text and can be searched
        for path in paths:
            drawing.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
