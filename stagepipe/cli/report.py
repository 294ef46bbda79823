"""`stagepipe report`: prints, draws and compares reports that `stagepipe run --report` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stagepipe.cli.errors import exit_on_error
from stagepipe.cli.reports import check_report_path, draw_report, print_renderable, raise_report_errors, write_reports
from stagepipe.core import UsageError

if TYPE_CHECKING:
    from stagepipe.report import Report


@exit_on_error()
def report(
    first: Annotated[Path, typer.Argument(metavar="FILE.json", help="A report of `stagepipe run --report FILE.json`.")],
    second: Annotated[
        Path | None, typer.Argument(metavar="[FILE.json]", help="Another one, to compare with the first.")
    ] = None,
    *,
    report: Annotated[
        list[Path] | None, typer.Option(help="Write the report to FILE.html or FILE.json instead; repeatable.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all of the report: hops, phases.")] = False,
) -> None:
    """Print a report again, draw it as HTML, or compare two runs. Exit status: 0, or 2 for a wrong file or call."""
    from stagepipe.report import compare_runs, render_comparison

    if second is not None and report:
        raise UsageError("--report draws one report: give one FILE.json, or leave --report out to compare two")
    paths = [check_report_path(path) for path in report or []]
    read = _read_report(first)
    if second is not None:
        print_renderable(render_comparison(compare_runs(read, _read_report(second))))
    elif paths:
        raise_report_errors(write_reports(read, paths).errors)
    else:
        print_renderable(draw_report(read, verbose))


def _read_report(path: Path) -> Report:
    from stagepipe.report import from_json

    try:
        return from_json(path.read_bytes())
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise UsageError(message) from None
    except UsageError as error:
        message = f"{path}: {error}"
        raise UsageError(message) from None
