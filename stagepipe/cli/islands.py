"""`stagepipe run` with `inside: local`, a pipeline on each node: prints one table of all nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from stagepipe.cli.progress import ProgressDisplay
from stagepipe.cli.report import (
    check_output_files,
    check_report_path,
    print_renderable,
    raise_report_errors,
    write_report_file,
)
from stagepipe.core import RunError, UsageError, format_ns, format_rate

if TYPE_CHECKING:
    from rich.table import Table

    from stagepipe.cluster import IslandOptions, IslandResult
    from stagepipe.report import Report

_SCHEMA = "stagepipe.islands/1"


def run_on_islands(
    config: Path,
    options: IslandOptions,
    *,
    report_paths: Sequence[Path],
    dead_letters: Path | None,
    quiet: bool,
    can_resume: bool,
    interruptible: AbstractContextManager[None],
) -> None:
    """Run the config on all nodes of the cluster, and print the result of each island. Raises RunError if one failed.

    `can_resume` says whether the islands keep journals for `--resume`.
    """
    from stagepipe.cluster import run_islands
    from stagepipe.engine import write_dead_letters

    for path in report_paths:
        if check_report_path(path).suffix != ".json":
            raise UsageError(f"--report {path}: the reports of all islands go to one .json file; name a .json file")
    check_output_files({"--dead-letters": dead_letters})
    with ProgressDisplay(options.limit, quiet) as display, interruptible:
        results = run_islands(config, options, display.update)
    if dead_letters is not None:
        write_dead_letters([letter for result in results for letter in result.dead_letters], dead_letters)
    errors = _write_reports(results, report_paths)
    if not quiet:
        _print_results(results)
        print("".join(f"wrote {path}\n" for path in report_paths), end="", file=sys.stderr)
    _raise_errors(results, can_resume=can_resume)
    raise_report_errors(errors)


def refuse_options(given: Mapping[str, object]) -> None:
    """Raise UsageError for a given option that islands do not support."""
    reasons = {
        "--resume FILE": "the sinks with workers keep a journal on each node; write --resume without a file",
        "--trace": "each island would write its own",
        "--only-dead-letters": "its items are those of a whole run, not of an island",
        "--log-json": "the workers' output goes to the cluster's log",
    }
    for option, value in given.items():
        if value:
            raise UsageError(f"{option}: not with `inside: local`: {reasons[option]}; or run with engine=local")


def _write_reports(results: Sequence[IslandResult], paths: Sequence[Path]) -> list[str]:
    by_rank = sorted(results, key=lambda result: result.rank)
    islands = [
        {
            "rank": result.rank,
            "node": result.node,
            "status": _describe_status(result),
            "error": result.error,
            "report": result.report and json.loads(result.report),
        }
        for result in by_rank
    ]
    document = {"schema": _SCHEMA, "islands": islands}
    content = f"{json.dumps(document, indent=2)}\n".encode()
    return [error for path in paths if (error := write_report_file(path, content))]


def _describe_status(result: IslandResult) -> str:
    if result.is_lost:
        return "lost"
    if result.error:
        return "failed"
    if result.was_stopped:
        return "stopped"
    return "done before" if result.was_finished else "finished"


def _print_results(results: Sequence[IslandResult]) -> None:
    from stagepipe.report import from_json

    reports = {result.rank: from_json(result.report) for result in results if result.report is not None}
    print_renderable(_draw(sorted(results, key=lambda result: result.rank), reports))
    finished = [result for result in results if _describe_status(result) == "finished"]
    if finished:
        last = finished[-1]
        print(f"Island {last.rank} was the last to finish. {reports[last.rank].verdict.sentence}")


def _draw(results: Sequence[IslandResult], reports: Mapping[int, Report]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for heading in ("island", "node", "status"):
        table.add_column(heading, no_wrap=True)
    for heading in ("in", "out", "rate", "time"):
        table.add_column(heading, no_wrap=True, justify="right")
    table.add_column("limited by")
    for result in results:
        cells = [str(result.rank), result.node, _describe_status(result)]
        if (report := reports.get(result.rank)) is not None:
            cells += [*_describe_amounts([report]), report.verdict.limited_by]
        table.add_row(*cells)
    if len(reports) > 1:
        table.add_row("all", "", "", *_describe_amounts(list(reports.values())))
    return table


def _describe_amounts(reports: Sequence[Report]) -> tuple[str, ...]:
    """Return the sums of items and rates, and the longest time."""
    runs = [report.run for report in reports]
    return (
        f"{sum(run.items_in for run in runs):,}",
        f"{sum(run.samples_out for run in runs):,}",
        f"{format_rate(sum(run.items_per_s for run in runs))}/s",
        format_ns(max(run.wall_ns for run in runs)),
    )


def _raise_errors(results: Sequence[IslandResult], *, can_resume: bool) -> None:
    """Raise the first error of an island, or otherwise the errors of lost islands."""
    lost = [result for result in results if result.is_lost]
    for result in results:
        if result.error and not result.is_lost:
            error_class = UsageError if result.is_usage_error else RunError
            raise error_class(f"island {result.rank} on node {result.node}: {result.error}")
    if lost:
        others = len(results) - len(lost)
        way_out = "--resume continues the lost islands, on a node that sees their folders"
        if not can_resume:
            way_out = "no sink keeps a journal, so the lost islands can only run again from the start"
        lines = [*(result.error for result in lost), f"the other islands ({others}) have finished; {way_out}"]
        raise RunError("\n".join(lines))
