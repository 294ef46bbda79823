"""Reports on their way out: to files, and as a table on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagepipe.core import UsageError

if TYPE_CHECKING:
    from stagepipe.report import Report


def check_report_path(path: Path) -> Path:
    """`path` if a report can be written there; asked before the run, which may take hours."""
    if path.suffix == ".html":
        message = f"--report {path}: HTML reports are not available yet; write FILE.json"
        raise UsageError(message)
    if path.suffix != ".json":
        message = f"--report {path}: a report is a .json file; write --report {path.with_suffix('.json')}"
        raise UsageError(message)
    check_folder("--report", path)
    return path


def check_folder(option: str, path: Path) -> None:
    """Make the folder of a file that an option names. UsageError if the file cannot be there."""
    if path.is_dir():
        message = f"{option} {path}: that is a folder; name a file in it"
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


def show(report: Report) -> None:
    """Print the table and the verdict on stdout; of a failed run two lines, as its error follows."""
    from rich.console import Console

    from stagepipe.report.table import render, render_summary

    Console().print(render_summary(report) if report.run.status == "failed" else render(report))
