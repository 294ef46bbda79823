"""Write the tables of docs/measured.md from the figures of full runs; the text around them is written by hand.

    python -m benchmarks.hop --json runs/hop.json
    python -m benchmarks.loader --json runs/loader.json
    cp runs/hop.json runs/loader.json docs/benchmarks/
    python -m benchmarks.measured docs/benchmarks/hop.json docs/benchmarks/loader.json
    python -m benchmarks.readme

A table stands between `<!-- hop -->` and `<!-- end hop -->`, and so on. A table without figures stays as it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.command import machine_line
from benchmarks.common.figures import count_waits, estimate, format_waits, pool_waits, quotient
from benchmarks.common.turn import ROOT
from benchmarks.hop import loop
from benchmarks.hop.schedule import CONTESTANTS
from benchmarks.hop.tables import LOOP_BASE
from benchmarks.loader.contest import COLLATE, DATALOADER, MODELS, QUICKSTART

Document = dict[str, Any]
_PEER, _RATIO_SIZE = "Pipe", "1.2MB"
_FIRST = "stagepipe filled"
"""What stands first: an item as a user makes it."""
_SIZE_NAMES = {"0B": "0 B", "1KB": "1 KB", "64KB": "64 KB", "1.2MB": "1.2 MB", "8MB": "8 MB", "64MB": "64 MB"}

_TARGET_TABLES = {
    "a loop over ": "loop",
    "a batch ": COLLATE,
    "CPU seconds per item ": QUICKSTART,
    "items per second ": QUICKSTART,
    "memory of three models ": MODELS,
}


def _table(titles: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _make_caption(document: Document, values: Sequence[float], note: str = "") -> Iterator[str]:
    coverage = 100 * estimate(values).coverage
    yield ""
    yield f"Medians of {len(values)} rounds{note}; brackets: {coverage:.0f} % interval of the median. A ratio divides"
    yield "two medians; its interval goes from the lowest to the highest quotient of their intervals."
    yield f"`{document['command']}`, {machine_line(document['machine'])}."


def make_hop_table(document: Document) -> Iterator[str]:
    """Yield the table of the sizes: us of an untouched item, and Pipe's time divided by it."""
    us = {(row["contestant"], row["size"]): row["us"] for row in document["rows"] if not row["touched"]}
    names, sizes = (list(dict.fromkeys(key[index] for key in us)) for index in (0, 1))
    names.sort(key=lambda name: name != _FIRST)

    def make_row(name: str) -> list[str]:
        cells = [f"{median(us[name, size]):,.{1 if median(us[name, size]) < 100 else 0}f}" for size in sizes]
        return [name, *cells, _divide(us.get((_PEER, _RATIO_SIZE)), us.get((name, _RATIO_SIZE)), 1)]

    titles = ("us of an item", *(_SIZE_NAMES[size] for size in sizes), f"times faster than Pipe at {_RATIO_SIZE}")
    yield from _table(titles, map(make_row, names))
    rounds = {size: len(us[names[0], size]) for size in sizes}
    usual = max(rounds.values())
    fewer = [f"{_SIZE_NAMES[size]}: {count}" for size, count in rounds.items() if count < usual]
    most = us[names[0], max(sizes, key=rounds.__getitem__)]
    yield from _make_caption(document, most, f" ({', '.join(fewer)})" if fewer else "")
    yield from _list_targets(document, "hop")
    yield from _list_missing(document, CONTESTANTS)


def _divide(numerators: Sequence[float] | None, denominators: Sequence[float] | None, digits: int = 2) -> str:
    """Format the quotient of the figures shown; "1" for a contestant beside itself."""
    if not numerators or not denominators:
        return ""
    if numerators is denominators:
        return "1"
    return quotient(estimate(numerators), estimate(denominators)).text(digits)


def _list_targets(document: Document, table: str) -> Iterator[str]:
    """Yield a line for each target of the run that belongs to the table, shortened."""
    targets = [target for target in document.get("targets", ()) if find_table(target["text"]) == table]
    if targets:
        yield from ("", "The run's own targets, whose ratios are taken round by round:", "")
    for target in targets:
        verdict = {True: "met", False: "missed", None: "undecided" if target["measured"] else "not measured"}
        measured = re.split(r"; | \(", target["measured"])[0]
        yield f"- {verdict[target['met']]}: {target['text']}{f': {measured}' if measured else ''}"


def find_table(text: str) -> str:
    """Return the table that a target belongs to, by how its text begins.

    >>> find_table("a loop over dicts of two numbers, stagepipe: no slower than Pipe")
    'loop'
    """
    return next((table for begin, table in _TARGET_TABLES.items() if text.startswith(begin)), "hop")


def _list_missing(document: Document, known: Container[str]) -> Iterator[str]:
    """Yield a line that names the contestants of the table that this machine could not run."""
    if missing := [name for name in document.get("missing", ()) if name in known]:
        yield from ("", f"Not in this run, because their packages were not installed: {', '.join(missing)}.")


def make_loop_table(document: Document) -> Iterator[str]:
    """Yield the table of the loops over small dicts, with ratios to Pipe."""
    keys = ("us", "cpu_us")
    values: list[float] = []
    for kind, turns in document["loops"].items():
        columns = {name: {key: [turn[key] for turn in figures] for key in keys} for name, figures in turns.items()}
        rows = []
        for name, own in columns.items():
            base = columns.get(LOOP_BASE.get(name, ""), {})
            cells = [estimate(own[key]).text(1) for key in keys]
            rows.append([name, *cells, *(_divide(own[key], base.get(key)) for key in keys)])
            values = own["us"]
        yield from _table((f"dict of {kind}", "us", "CPU us", "us, times Pipe", "CPU, times Pipe"), iter(rows))
        yield ""
    yield from list(_make_caption(document, values))[1:]
    yield from _list_targets(document, "loop")
    yield from _list_missing(document, loop.CONTESTANTS)


def make_loader_table(document: Document, part: str) -> Iterator[str]:
    """Yield the table of a part of the comparison with DataLoader."""
    rows = [row for row in document["rows"] if row["part"] == part]
    rows.sort(key=lambda row: row["contestant"] != _FIRST)
    if not rows:
        return
    is_collate = part == COLLATE
    batch = next(job["batch"] for job in document["jobs"] if job["part"] == part) if is_collate else 1

    def find_speeds(row: Document) -> list[float]:
        rates = [turn["items_per_s"] for turn in row["answers"]]
        return [1000 * batch / rate for rate in rates] if is_collate else rates

    speeds = {row["contestant"]: find_speeds(row) for row in rows}
    peer = speeds.get(DATALOADER) if is_collate else None

    def make_row(row: Document) -> list[str]:
        columns = {key: [turn[key] for turn in row["answers"]] for key in row["answers"][0]}
        own = speeds[row["contestant"]]
        return [
            row["contestant"],
            estimate(own).text(1),
            *([_divide(peer, own, 1)] if peer else []),
            estimate([1000 * batch * value for value in columns["cpu_s_per_item"]]).text(),
            f"{median(columns['first_batch_s']):.2f} s",
            *([f"{1000 * median(columns['second_first_s']):.0f} ms"] if part == QUICKSTART else []),
            format_waits(pool_waits(map(count_waits, columns["waits_s"]))),
            f"{median(columns['life_cpu_s']):.1f} s",
            f"{median(columns['pss_bytes']) / 1e6:,.0f} MB",
        ]

    cost = ("ms a batch", "CPU ms") if is_collate else ("items/s", "CPU ms of an item")
    times = (f"times faster than {DATALOADER}",) if peer else ()
    later = ("second epoch's first batch",) if part == QUICKSTART else ()
    rest = ("wait for a batch, all rounds", "CPU of the whole turn", "memory (PSS)")
    yield from _table(("", cost[0], *times, cost[1], "first batch", *later, *rest), map(make_row, rows))
    yield from _make_caption(document, speeds[rows[0]["contestant"]])
    yield from _list_targets(document, part)


def main(paths: Sequence[str]) -> None:
    """Replace the tables of docs/measured.md for which `paths` have figures."""
    page = ROOT / "docs" / "measured.md"
    page.write_text(replace_tables(page.read_text(), paths))


def replace_tables(text: str, paths: Sequence[str]) -> str:
    """Return `text` with the tables for which `paths` have figures."""
    for path in paths:
        document = json.loads(Path(path).read_text())
        for name, lines in _make_tables(document):
            text = replace_table(text, name, lines)
    return text


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
