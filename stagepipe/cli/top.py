"""`stagepipe top`: shows a run of another process while it goes."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

from stagepipe.cli.errors import exit_on_error
from stagepipe.core import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagepipe.engine import LiveFigures
    from stagepipe.report import LiveRun
    from stagepipe.runtime import AttachedRun

_MAX_COMMAND_CHARS = 60
"""Of the command line of a run in a list of runs."""


@exit_on_error()
def top(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|PID]", help="The name of a run, or its process. Default: the only one."),
    ] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once, after one interval, and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON (stagepipe.top/1), one line for each look.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Watch a run of yours on this machine, also one inside a training script. Ctrl-C leaves it as it is.

    Exit status: 0 (also when the run has ended), or 2 if no run, or more than one, is meant.
    """
    from stagepipe.engine import LiveFigures

    with contextlib.suppress(KeyboardInterrupt):
        figures = LiveFigures.attach(_select_run(run))
        looks = _look(figures, interval, once=once)
        if as_json:
            _print_json(looks)
        else:
            _show_tables(looks, is_live=not once)


def _look(figures: LiveFigures, interval_s: float, *, once: bool) -> Iterator[LiveRun]:
    while True:
        time.sleep(interval_s)
        seen = figures.take(detailed=True)
        yield seen
        if once or seen.state == "ended":
            return


def _print_json(looks: Iterator[LiveRun]) -> None:
    from stagepipe.report import live_run_to_json

    for seen in looks:
        sys.stdout.write(live_run_to_json(seen).decode())
        sys.stdout.flush()


def _show_tables(looks: Iterator[LiveRun], *, is_live: bool) -> None:
    """Draw on a terminal in one place, elsewhere one below the other."""
    from rich.console import Console
    from rich.live import Live

    from stagepipe.report import print_to_stdout, render_live_run

    console = Console()
    if not (is_live and console.is_interactive):
        for seen in looks:
            print_to_stdout(render_live_run(seen))
        return
    with Live("attached", console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for seen in looks:
            live.update(render_live_run(seen, fits_height=True), refresh=True)


def _select_run(wanted: str | None) -> AttachedRun:
    """Return the run that is meant. Raises UsageError if none is, or several are."""
    from stagepipe.runtime import find_runs

    found = find_runs()
    matching = [each for each in found.runs if wanted in {None, each.description.name, each.run_id, str(each.pid)}]
    if len(matching) == 1:
        return matching[0]
    if matching:
        lines = ["several runs are going; name one by its name, its process or its number (the first column):"]
    elif found.runs:
        lines = [f"no run has the name or the process {wanted}; these are going:"]
    else:
        lines = [
            "no run found: none of yours is going on this machine" + (f", so none is {wanted}" if wanted else ""),
            "a run with `attach: false`, an inline run and a run in another container cannot be seen",
        ]
    lines += [_format_run(each) for each in matching or found.runs]
    raise UsageError("\n".join([*lines, *found.problems]))


def _format_run(run: AttachedRun) -> str:
    """Format `  4711-1  thumbnails  python train.py`."""
    command = ""
    with contextlib.suppress(psutil.Error):
        command = " ".join(psutil.Process(run.pid).cmdline())
    if len(command) > _MAX_COMMAND_CHARS:
        command = f"{command[: _MAX_COMMAND_CHARS - 3]}..."
    return f"  {run.run_id}  {run.description.name}  {command}".rstrip()
