"""`stagepipe run`: run a pipeline to its end and say where the time went."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.interrupts import Interrupts
from stagepipe.cli.json_lines import json_stderr
from stagepipe.cli.outlooks import tell_chosen
from stagepipe.cli.problems import reported
from stagepipe.cli.progress import ProgressDisplay
from stagepipe.cli.reports import check_report_path, show, write_reports


@reported()
def run(
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Such as stages.decode.workers=8 vars.size=128.")
    ] = None,
    *,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many items of the source.")] = None,
    report: Annotated[list[Path] | None, typer.Option(help="Write the report to FILE.json; repeatable.")] = None,
    inline: Annotated[bool, typer.Option("--inline", help="Run all stages in this process: for pdb.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Go on from where FILE says that a run was, and keep it up to date.")
    ] = None,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Write all of stderr, workers' lines too, as lines of JSON.")
    ] = False,
) -> None:
    """Run a pipeline. Exit status: 0 finished, 1 the run failed, 2 the config or the call is wrong, 130 interrupted."""
    from stagepipe.engine import Pipeline, StateFile, drain

    with json_stderr() if log_json else nullcontext() as lines, Interrupts() as interrupts:
        pipeline = Pipeline(config, overrides or [], inline=inline, limit=limit)
        if lines is not None:
            pipeline.show_lines = lines.show
        paths = [check_report_path(path) for path in report or []]
        if pipeline.spec.report.json is not None:
            paths.append(check_report_path(Path(pipeline.spec.report.json)))
        state = None if resume is None else StateFile(resume)
        if state is not None and not state.load(pipeline):
            print(f"{resume}: that run is finished; delete the file to run it anew", file=sys.stderr)
            return
        try:
            if not quiet:
                with interrupts.working():
                    tell_chosen(pipeline)
            with ProgressDisplay(limit, quiet) as display, pipeline, interrupts.working():
                drain(pipeline, display.update, state)
        finally:
            if not inline and pipeline.started:
                result = pipeline.report()
                write_reports(result, paths)
                if not quiet:
                    show(result)
