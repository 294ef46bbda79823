"""Outlooks on their way out: as tables, as JSON, as a picture."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stagepipe.core import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagepipe.engine import Pipeline
    from stagepipe.plan.outlook.model import Outlook

_PICTURES: Final = (".svg", ".mmd")


def files_among(arguments: Sequence[str], *, graph: bool) -> tuple[list[str], list[Path]]:
    """The overrides among a command's arguments, and the files to draw to; asked before anything runs.

    >>> files_among(["seed=1", "a.svg"], graph=True)
    (['seed=1'], [PosixPath('a.svg')])
    """
    if not graph:
        return list(arguments), []
    files = [Path(argument) for argument in arguments if "=" not in argument]
    for path in files:
        if path.suffix not in _PICTURES:
            message = f"--graph {path}: a graph is written to a .svg or a .mmd file (Mermaid); name one"
            raise UsageError(message)
        if path.is_dir() or not path.parent.is_dir():
            message = f"--graph {path}: that is a folder, or lies in none; name a file in a folder that exists"
            raise UsageError(message)
    return [argument for argument in arguments if "=" in argument], files


@contextmanager
def probing() -> Iterator[None]:
    """Say on a terminal's stderr what takes so long: stages start, and a few items go through."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("probing: the stages start and work on the first few items"):
        yield


def tell_chosen(pipeline: Pipeline) -> None:
    """What `workers: auto` becomes, on stderr: stdout may be a sink's."""
    if any(stage.workers == "auto" for stage in pipeline.spec.stages):
        with probing():
            chosen = pipeline.chosen
        for line in chosen:
            print(line, file=sys.stderr)


def draw(outlook: Outlook, files: Sequence[Path]) -> None:
    """Write the picture to each of `files`; without any, print Mermaid text."""
    from stagepipe.plan.outlook.drawing import mermaid, svg

    for path in files:
        path.write_text(svg(outlook) if path.suffix == ".svg" else mermaid(outlook), encoding="utf-8")
    if not files:
        print(mermaid(outlook), end="")


def show(outlook: Outlook, *, json: bool) -> None:
    """Print the tables and the advice on stdout, or all of it as JSON."""
    if json:
        from stagepipe.plan.outlook.model import to_json

        print(to_json(outlook).decode(), end="")
        return
    from rich.console import Console

    from stagepipe.plan.outlook.table import render

    Console().print(render(outlook))
