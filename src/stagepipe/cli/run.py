"""`stagepipe run`: run a pipeline to its end and say where the time went."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagepipe.cli.interrupts import Interrupts
from stagepipe.cli.json_lines import json_stderr
from stagepipe.cli.outlooks import tell_chosen
from stagepipe.cli.problems import reported
from stagepipe.cli.progress import ProgressDisplay
from stagepipe.cli.reports import check_folder, check_report_path, show, write_reports

if TYPE_CHECKING:
    from stagepipe.engine import Pipeline


@reported()
def run(  # noqa: PLR0913 - an option each
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
    dead_letters: Annotated[
        Path | None, typer.Option(help="Write the items that were skipped (`on_error: skip`) to FILE, one a line.")
    ] = None,
    only_dead_letters: Annotated[
        Path | None, typer.Option(help="Run the items alone that are in FILE: dead letters, or a report.")
    ] = None,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Write all of stderr, workers' lines too, as lines of JSON.")
    ] = False,
) -> None:
    """Run a pipeline. Exit status: 0 finished, 1 the run failed, 2 the config or the call is wrong, 130 interrupted."""
    from stagepipe.engine import StateFile, drain, write_dead_letters

    with json_stderr() if log_json else nullcontext() as lines, Interrupts() as interrupts:
        pipeline = _pipeline(config, overrides or [], only_dead_letters, inline=inline, limit=limit)
        if lines is not None:
            pipeline.show_lines = lines.show
        paths = [check_report_path(path) for path in report or []]
        if dead_letters is not None:
            check_folder("--dead-letters", dead_letters)
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
            if dead_letters is not None:
                write_dead_letters(pipeline.dead_letters, dead_letters)
            if not inline and pipeline.started:
                result = pipeline.report()
                write_reports(result, paths)
                if not quiet:
                    show(result)


def _pipeline(config: Path, overrides: list[str], letters: Path | None, **keys: Any) -> Pipeline:
    """All of the pipeline, or only the items that failed in another run."""
    from stagepipe.config import load
    from stagepipe.engine import Pipeline, to_try_again

    if letters is None:
        return Pipeline(config, overrides, **keys)
    again = to_try_again(letters, load(config, overrides))
    pipeline = Pipeline(config, overrides, only=again.items, **keys)
    pipeline.set_epoch(again.epoch)
    return pipeline
