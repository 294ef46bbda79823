"""Write the tables of README.md from the figures of full runs; the text around them is written by hand.

    python -m benchmarks.hop --json runs/hop.json
    python -m benchmarks.loader --json runs/loader.json
    python -m benchmarks.readme runs/hop.json runs/loader.json

A table stands between `<!-- hop -->` and `<!-- end hop -->`, and so on. A table without figures stays as it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.figures import estimate, ratio
from benchmarks.common.machine import machine_line
from benchmarks.common.turn import ROOT
from benchmarks.hop.tables import LOOP_BASE
from benchmarks.loader.contest import COLLATE, DATALOADER, MODELS, QUICKSTART
from benchmarks.loader.tables import find_p99

Document = dict[str, Any]
_RATIO_SIZE = "1.2MB"
_SIZE_NAMES = {"0B": "0 B", "1KB": "1 KB", "64KB": "64 KB", "1.2MB": "1.2 MB", "8MB": "8 MB", "64MB": "64 MB"}


def _table(titles: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _make_caption(document: Document, rounds: int) -> Iterator[str]:
    coverage = 100 * estimate([0.0] * rounds).coverage
    yield ""
    yield f"Medians of {rounds} rounds; brackets: {coverage:.0f} % interval of the median. `{document['command']}`,"
    yield f"{machine_line(document['machine'])}."


def make_hop_table(document: Document) -> Iterator[str]:
    """Yield the table of the sizes: us of an untouched item, and Pipe's time divided by it."""
    us = {(row["contestant"], row["size"]): row["us"] for row in document["rows"] if not row["touched"]}
    names, sizes = (list(dict.fromkeys(key[index] for key in us)) for index in (0, 1))

    def make_row(name: str) -> list[str]:
        pipe, own = us.get(("Pipe", _RATIO_SIZE)), us.get((name, _RATIO_SIZE))
        cells = [f"{median(us[name, size]):,.{1 if median(us[name, size]) < 100 else 0}f}" for size in sizes]
        return [name, *cells, ratio(pipe, own).text(1) if pipe and own else ""]

    titles = ("us of an item", *(_SIZE_NAMES[size] for size in sizes), f"times faster than Pipe at {_RATIO_SIZE}")
    yield from _table(titles, map(make_row, names))
    yield from _make_caption(document, len(us[names[0], sizes[0]]))


def make_loop_table(document: Document) -> Iterator[str]:
    """Yield the table of the loops over small dicts, with ratios to Pipe."""
    titles = ("", "us", "CPU us", "us, times Pipe", "CPU, times Pipe")
    rounds = 0
    for kind, turns in document["loops"].items():
        rows = []
        for name, figures in turns.items():
            columns = [[turn[key] for turn in figures] for key in ("us", "cpu_us")]
            base = turns.get(LOOP_BASE.get(name, ""), [])
            times = [
                ratio(c, [turn[k] for turn in base]).text()
                for c, k in zip(columns, ("us", "cpu_us"), strict=True)
                if base
            ]
            rows.append([name, *(f"{median(column):.1f}" for column in columns), *(times or ["", ""])])
            rounds = len(figures)
        yield from _table((f"dict of {kind}", *titles[1:]), iter(rows))
        yield ""
    yield from list(_make_caption(document, rounds))[1:]


def make_loader_table(document: Document, part: str) -> Iterator[str]:
    """Yield the table of a part of the comparison with DataLoader."""
    rows = [row for row in document["rows"] if row["part"] == part]
    if not rows:
        return
    is_collate = part == COLLATE
    batch = next(job["batch"] for job in document["jobs"] if job["part"] == part) if is_collate else 1
    rates = {row["contestant"]: [turn["items_per_s"] for turn in row["answers"]] for row in rows}
    peer = rates.get(DATALOADER)

    def make_row(row: Document) -> list[str]:
        columns = {key: [turn[key] for turn in row["answers"]] for key in row["answers"][0]}
        rate = columns["items_per_s"]
        return [
            row["contestant"],
            estimate([1000 * batch / value for value in rate] if is_collate else rate).text(1),
            *([ratio(rate, peer).text(1)] if peer else []),
            estimate([1000 * batch * value for value in columns["cpu_s_per_item"]]).text(),
            f"{1000 * median(columns['second_first_s']):.0f} ms",
            f"{1000 * find_p99([wait for waits in columns['waits_s'] for wait in waits]):.0f} ms",
            f"{median(columns['pss_bytes']) / 1e6:,.0f} MB",
        ]

    cost = ("ms a batch", "CPU ms") if is_collate else ("items/s", "CPU ms of an item")
    times = (f"times faster than {DATALOADER}",) if peer else ()
    titles = ("", cost[0], *times, cost[1], "second epoch's first batch", "p99 wait", "memory (PSS)")
    yield from _table(titles, map(make_row, rows))
    yield from _make_caption(document, len(rows[0]["answers"]))


def main(paths: Sequence[str]) -> None:
    """Replace the tables of README.md for which `paths` have figures."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    for path in paths:
        document = json.loads(Path(path).read_text())
        for name, lines in _make_tables(document):
            text = replace_table(text, name, lines)
    readme.write_text(text)


def _make_tables(document: Document) -> Iterator[tuple[str, Iterator[str]]]:
    if "jobs" in document:
        for part in (COLLATE, QUICKSTART, MODELS):
            yield part, make_loader_table(document, part)
    elif document["rows"]:
        yield "hop", make_hop_table(document)
    if document.get("loops"):
        yield "loop", make_loop_table(document)


def replace_table(text: str, name: str, lines: Iterator[str]) -> str:
    """Return `text` with `lines` between the marks of the table; without lines, it stays as it is.

    >>> replace_table("<!-- hop --> old <!-- end hop -->", "hop", iter(["new"])).split()
    ['<!--', 'hop', '-->', 'new', '<!--', 'end', 'hop', '-->']
    """
    table = "\n".join(lines)
    begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n\n{table}\n\n{end}", text) if table else text


if __name__ == "__main__":
    main(sys.argv[1:])
