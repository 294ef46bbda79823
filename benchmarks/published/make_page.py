"""Put the tables and the plots of benchmarks/published into its page, from the results.

    python -m benchmarks.published.make_page [RESULTS.json] [PAGE.md]

The prose is written by hand, in docs/benchmarks.md. What stands between two markers, `<!-- E1 -->` and `<!-- /E1 -->`,
is made: an experiment's tables and plot, the run, the targets, and the contestants that are faster. The plots go into a
folder next to the page, with the name of the page without its suffix.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.figures import estimate
from benchmarks.common.machine import machine_line
from benchmarks.published.forms import paragraph
from benchmarks.published.plots import draw
from benchmarks.published.registry import EXPERIMENTS
from benchmarks.published.results import Summary, read_turns, summarise
from benchmarks.published.tables import E3, experiment_tables
from benchmarks.published.verdicts import losses, targets

_PROSE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
_PINNED = "The receiver has its own processor and all other processes share the rest, except in E5's functions."
_UNPINNED = "The kernel places the processes."


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
    options.page.write_text(fill(_PROSE.read_text(), blocks(summary, document, pictures)))
    print(f"wrote {options.page} and {len(pictures)} plots to {options.page.with_suffix('')}")


def fill(page: str, made: dict[str, str]) -> str:
    r"""Put each block between its markers. Raise ValueError if the page lacks a pair of markers.

    >>> fill("<!-- E1 --> old <!-- /E1 -->", {"E1": "new"})
    '<!-- E1 -->\nnew\n<!-- /E1 -->'
    """
    for name, block in made.items():
        pair = re.compile(rf"(<!-- {name} -->).*(<!-- /{name} -->)", re.DOTALL)
        if not pair.search(page):
            message = f"the page has no markers <!-- {name} --> and <!-- /{name} -->; add them where the block belongs"
            raise ValueError(message)
        page = pair.sub(lambda found, block=block: f"{found[1]}\n{block.strip()}\n{found[2]}", page)  # type: ignore[misc]
    return page


def blocks(summary: Summary, about: dict[str, Any], pictures: dict[str, str]) -> dict[str, str]:
    """Return what stands between the markers, by their name."""
    made = {"run": _run(about), "targets": "\n".join(targets(summary)), "faster": "\n".join(losses(summary))}
    for experiment in (*EXPERIMENTS, E3):
        lines = list(experiment_tables(experiment, summary, about))
        if source := about["sources"].get(experiment):
            lines = [f"Payload: {source}.", *lines]
        if experiment in pictures:
            lines += ["", f"![{experiment}]({pictures[experiment]})"]
        made[experiment] = "\n".join(lines)
    return made


def tables(summary: Summary, about: dict[str, Any]) -> Iterator[str]:
    """Format the tables of every measured experiment and the verdicts, to print them at the end of a run."""
    for experiment in (*summary, *([E3] if E3 in about else [])):
        yield f"\n## {experiment}"
        yield from experiment_tables(experiment, summary, about)
    yield from ("\n## Targets\n", *targets(summary), "\n## Where stagepipe is slower\n", *losses(summary))


def _run(about: dict[str, Any]) -> str:
    settings, count = about["settings"], about["settings"]["rounds"]
    took = f"{about['took_s'] / 60:.0f} minutes, load average {about['load_average_at_end']:.1f} at the end"
    return "\n\n".join(
        (
            paragraph(
                f"{count} rounds; an interval over {count} contains the true median with a probability of "
                f"{estimate([1.0] * count).coverage:.0%}. {_PINNED if settings['pinned'] else _UNPINNED} Measured on: "
                f"{machine_line(about['machine'])} at the start; {took}. Command:"
            ),
            f"```sh\n{about['command']}\n```",
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
