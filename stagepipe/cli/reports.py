"""Writes reports to files and prints them as tables. In the calling process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagepipe.cli.standard_streams import explain_stdout_errors
from stagepipe.core import UsageError

if TYPE_CHECKING:
    from stagepipe.report import Report


def check_report_path(path: Path) -> Path:
    """Return `path` if a report can be written there. Called before the run, which may take hours."""
    if path.suffix == ".html":
        message = f"--report {path}: HTML reports are not available yet; use FILE.json"
        raise UsageError(message)
    if path.suffix != ".json":
        message = f"--report {path}: a report is a .json file; use --report {path.with_suffix('.json')}"
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


def write_reports(report: Report, paths: list[Path]) -> None:
    """Write the report's JSON to each path."""
    from stagepipe.report import to_json

    for path in paths:
        path.write_bytes(to_json(report))


def print_report(report: Report) -> None:
    """Print the table and the verdict on stdout; for a failed run only two lines, because its error follows."""
    from rich.console import Console

    from stagepipe.report import render_report, render_summary

    with explain_stdout_errors():  # the error that ends the run is still to be printed
        Console().print(render_summary(report) if report.run.status == "failed" else render_report(report))
