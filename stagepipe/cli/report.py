"""`stagepipe report`, and functions of other commands to check report paths and to write and print reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from stagepipe.cli.errors import exit_on_error, explain_stdout_errors
from stagepipe.core import RunError, UsageError, check_output_file, replace_when_written

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stagepipe.report import Report


_MORE: Final = "More: -v (hops, phases, slowest items), --report FILE.html (charts over time)"


def check_report_path(path: Path) -> Path:
    """Return `path` if a report can be written there. Called before the run, which may take hours."""
    if path.suffix not in (".json", ".html"):
        message = f"--report {path}: a report is a .json or .html file; use --report {path.with_suffix('.html')}"
        raise UsageError(message)
    check_output_file("--report", path)
    return path


def check_output_files(paths_by_option: Mapping[str, Path | None]) -> None:
    """Raise UsageError if the file of a given option cannot be written."""
    for option, path in paths_by_option.items():
        if path is not None:
            check_output_file(option, path)


def refuse_one_file_for_two(paths: Iterable[Path | None]) -> None:
    """Raise UsageError if two output files of a run are the same."""
    counts = Counter(path.resolve() for path in paths if path is not None)
    for path, count in counts.items():
        if count > 1:
            message = f"{path}: this run would write {count} outputs to the same file; name one for each"
            raise UsageError(message)


def write_reports(report: Report, paths: list[Path]) -> dict[Path, str]:
    """Write the report to each path, as JSON or HTML. Return the error for each path, or "" if it is written."""
    from stagepipe.report import render_html, to_json

    return {
        path: write_report_file(
            path, render_html(report).encode("utf-8", "replace") if path.suffix == ".html" else to_json(report)
        )
        for path in paths
    }


def write_report_file(path: Path, content: bytes) -> str:
    """Write a report file. Return the error, or "" if it is written."""
    try:
        with replace_when_written(path.resolve()) as unfinished:  # a symbolic link stays one
            unfinished.write_bytes(content)
    except OSError as error:
        return f"the report {path} could not be written: {error.strerror or error}"
    return ""


def raise_report_errors(errors: Iterable[str]) -> None:
    """Raise RunError if there are any errors."""
    if found := "\n".join(filter(None, errors)):
        raise RunError(found)


def print_report(report: Report, *, is_verbose: bool) -> None:
    """Print the stages and the verdict, or the whole report. A failed run prints two lines, since its error follows."""
    from stagepipe.report import render_summary

    print_renderable(render_summary(report) if report.run.status == "failed" else draw_report(report, is_verbose))


def draw_report(report: Report, is_verbose: bool) -> RenderableType:
    """Return the printable report, whole or in brief."""
    from stagepipe.report import render_brief, render_report

    return render_report(report) if is_verbose else render_brief(report, more=_MORE)


def print_renderable(content: RenderableType) -> None:
    """Print on stdout with rich."""
    from stagepipe.report import print_to_stdout

    with explain_stdout_errors():  # the error that ends the run must still be printed
        print_to_stdout(content)


@exit_on_error()
def report(
    first: Annotated[Path, typer.Argument(metavar="FILE.json", help="A report of `stagepipe run --report FILE.json`.")],
    second: Annotated[
        Path | None, typer.Argument(metavar="[FILE.json]", help="Another report, to compare with the first.")
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
        raise_report_errors(write_reports(read, paths).values())
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
