"""`stagepipe doctor` and `stagepipe bench`: check the limits of this machine, and measure its costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from stagepipe.cli.errors import EXIT_RUN_FAILED, exit_on_error
from stagepipe.cli.report import print_renderable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stagepipe.machine import DoctorCheck


_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@exit_on_error()
def doctor(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the machine and the installation: the kernel, limits, memory, CPUs, packages, torch, CUDA, folders.

    Each line shows the value and, if something is wrong, the fix. Nothing is changed. Exit status: 0 if a run can
    start, 1 if not.
    """
    from stagepipe.machine import CheckStatus, diagnose

    checks = list(diagnose())
    statuses = [check.status for check in checks]
    if as_json:
        worst = max(statuses, key=list(CheckStatus).index)
        found = [{"name": c.name, "status": c.status.value, "value": c.value, "fix": c.fix} for c in checks]
        print(json.dumps({"status": worst.value, "checks": found}, indent=2))
    else:
        print_renderable(_draw_checks(checks))
        warnings, failures = statuses.count(CheckStatus.WARN), statuses.count(CheckStatus.FAIL)
        print(f"{len(checks)} checks: {failures} failed, {warnings} with a warning")
    if CheckStatus.FAIL in statuses:
        raise typer.Exit(EXIT_RUN_FAILED)


def _draw_checks(checks: list[DoctorCheck]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column()
    for check in checks:
        status = check.status.value
        table.add_row(Text(status, _STYLES[status]), check.name, Text(check.value))
        if check.fix:
            table.add_row("", "", Text(f"-> {check.fix}", "italic"))
    return table


@exit_on_error()
def bench(
    *,
    plot: Annotated[list[Path] | None, typer.Option(help="Draw a plot to FILE.svg or FILE.png; repeatable.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all measurements to FILE.json.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Take a quarter of the time and stop at 16 MB.")] = False,
) -> None:
    """Measure the cost curves of a hop on this machine, and the size from which shared memory is cheaper than a pipe.

    Takes about 20 seconds. For comparison it measures multiprocessing's Pipe, Queue and SharedMemory. The curves are
    saved, and later runs and plans use them; while other processes use the CPUs, saved curves are kept. Exit status: 0
    measured, 1 the measurement failed, 2 wrong call, 130 interrupted.
    """
    from stagepipe.bench import (
        FULL_BUDGET,
        QUICK_BUDGET,
        check_output_path,
        check_plot_paths,
        draw_plots,
        render_bench,
        run_bench,
        to_json,
    )
    from stagepipe.calibration import load_cached_curves, save_curves
    from stagepipe.core import VERSION
    from stagepipe.report import print_to_stdout

    plot_paths = plot or []
    check_plot_paths(plot_paths)
    check_output_path(json)
    with _progress_bar() as on_progress:
        result = run_bench(QUICK_BUDGET if quick else FULL_BUDGET, on_progress)
    is_kept = bool(result.busy_warning) and load_cached_curves(VERSION) is not None
    cache_path = None if is_kept else save_curves(result.curves, VERSION)
    if json is not None:
        json.write_text(to_json(result), encoding="utf-8")
    draw_plots(result, plot_paths)
    print_to_stdout(render_bench(result))
    if result.busy_warning:
        print(result.busy_warning)
    if cache_path is None:
        print("kept the curves of an earlier measurement for later runs")
    elif cache_path.is_file():
        print(f"saved the curves for later runs: {cache_path}")
    else:
        print(f"cannot save the curves to {cache_path}")


@contextmanager
def _progress_bar() -> Iterator[Callable[[float], None] | None]:
    """Show a bar on stderr if it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("measuring"), BarColumn(bar_width=30), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)
