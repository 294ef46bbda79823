"""`stagepipe bench`: what a message costs on this machine, by size and way, beside the standard library's ways."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.problems import reported


@reported()
def bench(
    *,
    plot: Annotated[list[Path] | None, typer.Option(help="Draw it to FILE.svg or FILE.png; repeatable.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write every figure to FILE.json.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="In a quarter of the time, up to 16 MB.")] = False,
) -> None:
    """Measure this machine at length: the curves of a hop, and where shared memory becomes cheaper than a pipe.

    In some 20 seconds. Beside it multiprocessing's Pipe, Queue and SharedMemory. The curves are kept: later runs and
    plans go by them. Exit status: 0, 1 it could not be measured, 2 the call is wrong, 130 interrupted.
    """
    from rich.console import Console

    from stagepipe.core import VERSION
    from stagepipe.plan.bench.model import check_file, to_json
    from stagepipe.plan.bench.picture import check_pictures, draw
    from stagepipe.plan.bench.schedule import FULL, QUICK, measure
    from stagepipe.plan.bench.table import render
    from stagepipe.plan.calibration.kept import keep

    pictures = plot or []
    check_pictures(pictures)
    check_file(json)
    with _progress() as tell:
        found = measure(QUICK if quick else FULL, tell)
    kept = keep(found.curves, VERSION)
    if json is not None:
        json.write_text(to_json(found), encoding="utf-8")
    draw(found, pictures)
    Console().print(render(found))
    print(f"the curves are kept for later runs: {kept}" if kept.is_file() else f"cannot be kept for later runs: {kept}")


@contextmanager
def _progress() -> Iterator[Callable[[float], None] | None]:
    """A bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("measuring"), BarColumn(bar_width=30), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share: bar.update(task, completed=share)
