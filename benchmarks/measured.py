"""Write the tables of docs/measured.md from the figures of full runs; the text around them is written by hand.

    python -m benchmarks.hop --json runs/hop.json
    python -m benchmarks.loader --json runs/loader.json
    cp runs/hop.json runs/loader.json docs/benchmarks/
    python -m benchmarks.measured docs/benchmarks/hop.json docs/benchmarks/loader.json
    python -m benchmarks.readme

A table stands between `<!-- hop -->` and `<!-- end hop -->`, and so on. A table without figures stays as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.page import Document, fill
from benchmarks.common.turn import ROOT
from benchmarks.hop.tables import make_hop_table, make_loop_table
from benchmarks.loader.tables import make_loader_table


def main(arguments: Sequence[str]) -> None:
    """Replace the tables of docs/measured.md for which the files have figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("figures", nargs="+", help="the JSON of benchmarks.hop or benchmarks.loader")
    page = ROOT / "docs" / "measured.md"
    page.write_text(replace_tables(page.read_text(), parser.parse_args(arguments).figures))


def replace_tables(text: str, paths: Sequence[str]) -> str:
    """Return `text` with the tables for which `paths` have figures."""
    for path in paths:
        for name, lines in _make_tables(json.loads(Path(path).read_text())):
            text = fill(text, name, "\n{}\n".format("\n".join(lines)))
    return text


def _make_tables(document: Document) -> Iterator[tuple[str, Iterator[str]]]:
    if "jobs" in document:
        for part in dict.fromkeys(row["part"] for row in document["rows"]):
            yield part, make_loader_table(document, part)
    elif document["rows"]:
        yield "hop", make_hop_table(document)
    if document.get("loops"):
        yield "loop", make_loop_table(document)


if __name__ == "__main__":
    main(sys.argv[1:])
