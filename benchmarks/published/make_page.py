"""Make the page of the published experiments, with tables and plots, from the results of benchmarks/published.

    python -m benchmarks.published.make_page [RESULTS.json] [PAGE.md]

The plots go into a folder next to the page, with the name of the page without its suffix.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.published.keeping import read_turns
from benchmarks.published.page.drawing import draw
from benchmarks.published.page.text import page
from benchmarks.published.summary import summarise


def main(arguments: Sequence[str]) -> None:
    """Write the page and the plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="?", default=Path("runs/published.json"))
    parser.add_argument("page", type=Path, nargs="?", default=Path("runs/benchmarks.md"))
    options = parser.parse_args(arguments)
    document = json.loads(options.results.read_text())
    if not document["finished"]:
        message = f"{options.results} is incomplete; resume the run with: {document['command']}"
        raise SystemExit(message)
    summary = summarise(read_turns(document), document["settings"]["size"])
    pictures = draw(summary, document, options.page.with_suffix(""))
    options.page.write_text("\n".join(page(summary, document, pictures)) + "\n")
    print(f"wrote {options.page} and {len(pictures)} plots to {options.page.with_suffix('')}")


if __name__ == "__main__":
    main(sys.argv[1:])
