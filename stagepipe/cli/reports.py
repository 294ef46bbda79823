"""Writes reports to files and prints them as tables. In the calling process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stagepipe.cli.standard_streams import explain_stdout_errors
from stagepipe.core import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stagepipe.report import Report


_MORE: Final = "More: -v (hops, phases, slowest items), --report FILE.html (charts over time)"


def check_report_path(path: Path) -> Path:
    """Return `path` if a report can be written there. Called before the run, which may take hours."""
    if path.suffix not in (".json", ".html"):
        message = f"--report {path}: a report is a .json or .html file; use --report {path.with_suffix('.html')}"
        raise UsageError(message)
    make_parent_folder("--report", path)
    return path


def make_parent_folder(option: str, path: Path | None) -> None:
    """Create the folder of an option's file, if one is given. Raises UsageError if it cannot be written there."""
    if path is None:
        return
    if path.is_dir():
        message = f"{option} {path}: this is a folder; name a file in it"
        raise UsageError(message)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{option} {path}: {error}"
        raise UsageError(message) from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        message = f"{option} {path}: no file can be written in {path.parent}; name a file in another folder"
        raise UsageError(message)


def refuse_one_file_for_two(paths: Iterable[Path | None]) -> None:
    """Raise UsageError if two of the files that a run writes are the same."""
    counts = Counter(path.resolve() for path in paths if path is not None)
    for path, count in counts.items():
        if count > 1:
            message = f"{path}: this run would write {count} outputs to the same file; name one for each"
            raise UsageError(message)


def write_reports(report: Report, paths: list[Path]) -> list[str]:
    """Write the report to each path: as JSON, or as a page of HTML. Return an error for each that cannot be written."""
    from stagepipe.report import render_html, to_json

    errors = []
    for path in paths:
        content = render_html(report).encode("utf-8", "replace") if path.suffix == ".html" else to_json(report)
        unfinished = path.with_name(f"{path.name}.tmp")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            errors.append(f"the report {path} could not be written: {error.strerror or error}")
    return errors


def print_report(report: Report, *, is_verbose: bool) -> None:
    """Print the stages and the verdict, or all of the report. For a failed run two lines, because its error follows."""
    from stagepipe.report import render_summary

    print_renderable(render_summary(report) if report.run.status == "failed" else draw_report(report, is_verbose))


def draw_report(report: Report, is_verbose: bool) -> RenderableType:
    """Return what to print of a report."""
    from stagepipe.report import render_brief, render_report

    return render_report(report) if is_verbose else render_brief(report, more=_MORE)


def print_renderable(content: RenderableType) -> None:
    """Print what rich can draw on stdout."""
    from rich.console import Console

    with explain_stdout_errors():  # the error that ends the run is still to be printed
        Console().print(content)
