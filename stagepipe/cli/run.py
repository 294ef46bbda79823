"""`stagepipe run`: runs a pipeline to its end and reports where the time went."""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagepipe.cli.errors import SignalHandler, exit_on_error
from stagepipe.cli.islands import refuse_options, run_on_islands
from stagepipe.cli.plan import print_auto_workers, print_cpu_warnings
from stagepipe.cli.progress import ProgressDisplay, redirect_stderr_to_json
from stagepipe.cli.report import (
    check_output_files,
    check_report_path,
    print_report,
    raise_report_errors,
    refuse_one_file_for_two,
    write_reports,
)
from stagepipe.core import UsageError

if TYPE_CHECKING:
    from stagepipe.api import Pipeline


@exit_on_error()
def run(  # noqa: PLR0913 - one parameter per option
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Such as stages.decode.workers=8 vars.size=128.")
    ] = None,
    *,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many items of the source.")] = None,
    report: Annotated[
        list[Path] | None, typer.Option(help="Write the report to FILE.json or FILE.html; repeatable.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto (ui.perfetto.dev) to FILE.json.gz or FILE.json.")
    ] = None,
    inline: Annotated[bool, typer.Option("--inline", help="Run all stages in this process: for pdb.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print neither progress nor table.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all of the report: hops, phases.")] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="[FILE]",
            help="Resume from the position in FILE, and keep FILE up to date. Without FILE: from the journal that a "
            "sink with workers keeps in its folder.",
        ),
    ] = None,
    allow_changed: Annotated[
        bool, typer.Option("--allow-changed", help="Resume even if the config now yields other items.")
    ] = False,
    dead_letters: Annotated[
        Path | None, typer.Option(help="Write skipped items (`on_error: skip`) to FILE, one per line.")
    ] = None,
    only_dead_letters: Annotated[
        Path | None, typer.Option(help="Run only the items in FILE: dead letters, or a report.")
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Compute all items and keep none, even in stages with a `cache`.")
    ] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Write all of stderr, with the workers' lines, as JSON lines.")
    ] = False,
) -> None:
    """Run a pipeline. Exit status: 0 finished, 1 the run failed, 2 wrong config or call, 130 interrupted."""
    from stagepipe.api import StateFile, has_part_sinks, open_shards, run_to_sink
    from stagepipe.cluster import IslandOptions
    from stagepipe.engine import write_dead_letters
    from stagepipe.spec import get_capabilities

    with (
        redirect_stderr_to_json() if log_json else nullcontext() as json_stream,
        SignalHandler() as signals,
        ExitStack() as stack,
    ):
        options = {"inline": inline, "limit": limit, "cache": not no_cache, "trace": trace}
        pipeline = _make_pipeline(config, overrides or [], only_dead_letters, **options)
        if not inline and not get_capabilities(pipeline.spec.engine).yields_items:
            is_given = {"--trace": trace, "--only-dead-letters": only_dead_letters, "--log-json": log_json}
            refuse_options({"--resume FILE": resume is not None and resume != Path(), **is_given})
            run_on_islands(
                config,
                IslandOptions(
                    overrides=tuple(overrides or ()),
                    limit=limit,
                    resume=resume is not None,
                    allow_changed=allow_changed,
                    uses_caches=not no_cache,
                ),
                report_paths=_choose_report_paths(report or [], pipeline),
                dead_letters=dead_letters,
                quiet=quiet,
                can_resume=has_part_sinks(pipeline.spec),
                interruptible=signals.interruptible(),
            )
            return
        if json_stream is not None:
            pipeline.on_output = json_stream.write_worker_lines
        report_paths = _choose_report_paths(report or [], pipeline)
        state_path = _check_state_path(resume, has_journal=has_part_sinks(pipeline.spec))
        check_output_files({"--dead-letters": dead_letters, "--resume": state_path})
        refuse_one_file_for_two([*dict.fromkeys(report_paths), pipeline.trace_path, dead_letters, state_path])
        state = None if state_path is None else StateFile(state_path)
        if state is not None and not state.load(pipeline, allow_changed=allow_changed):
            print(f"{resume}: this run has finished; delete the file to run it again", file=sys.stderr)
            return
        shards = stack.enter_context(open_shards(pipeline, resume=resume is not None, allow_changed=allow_changed))
        if shards is not None and shards.is_finished:
            if dead_letters is not None:  # the run that finished may have been killed before it wrote them
                write_dead_letters(pipeline.dead_letters, dead_letters)
            print(shards.finished_message, file=sys.stderr)
            return
        report_errors: list[str] = []
        is_done = False
        try:
            if not quiet:
                print_cpu_warnings(pipeline.spec)
                with signals.interruptible():
                    print_auto_workers(pipeline)
            with ProgressDisplay(limit, quiet) as display, pipeline, signals.interruptible():
                run_to_sink(pipeline, display.update, state, shards=shards)
            is_done = True
        finally:
            if dead_letters is not None:
                write_dead_letters(pipeline.dead_letters, dead_letters)
            if pipeline.started:
                report_errors = _write_results(pipeline, report_paths, is_quiet=quiet, is_verbose=verbose)
                if not is_done and shards is not None and pipeline.report().run.items_in:
                    print("the same command with --resume continues from the last part", file=sys.stderr)
        raise_report_errors(report_errors)


def _choose_report_paths(paths: list[Path], pipeline: Pipeline) -> list[Path]:
    """Return the files of `--report` and of the config's `report`. Raises UsageError for an invalid file."""
    in_config = (pipeline.spec.report.json_path, pipeline.spec.report.html_path)
    return [check_report_path(path) for path in (*paths, *(Path(path) for path in in_config if path is not None))]


def _write_results(pipeline: Pipeline, report_paths: list[Path], *, is_quiet: bool, is_verbose: bool) -> list[str]:
    """Write and print the report of an ended run. Return an error for each file that could not be written."""
    result = pipeline.report()
    written = write_reports(result, report_paths)
    trace_path = pipeline.written_trace
    if not is_quiet:
        print_report(result, is_verbose=is_verbose)
        paths = [*(path for path in written if not written[path]), *([] if trace_path is None else [trace_path])]
        print("".join(f"wrote {path}\n" for path in paths), end="", file=sys.stderr)
    if pipeline.trace_path is None or trace_path is not None:
        return list(written.values())
    return [*written.values(), f"the trace {pipeline.trace_path} was not written: see the warning above"]


def _check_state_path(resume: Path | None, *, has_journal: bool) -> Path | None:
    """Return the file of `--resume`, or None if a journal has the state. Raises UsageError if it is the wrong form."""
    is_file = resume is not None and resume != Path()
    if is_file and has_journal:
        raise UsageError(
            f"--resume {resume}: the sinks of this config keep their own journal; write --resume without a file"
        )
    if resume is not None and not (is_file or has_journal):
        raise UsageError(
            "--resume: this config has no sink with workers, which would keep a journal; name a file: --resume FILE"
        )
    return resume if is_file else None


def _make_pipeline(config: Path, overrides: list[str], dead_letters: Path | None, **options: Any) -> Pipeline:
    """Create the pipeline, with all items or only those that failed in another run."""
    from stagepipe.api import Pipeline
    from stagepipe.config import load
    from stagepipe.engine import load_retry_selection

    if dead_letters is None:
        return Pipeline(config, overrides, **options)
    retry = load_retry_selection(dead_letters, load(config, overrides))
    pipeline = Pipeline(config, overrides, only=retry.source_items, **options)
    pipeline.set_epoch(retry.epoch)
    return pipeline
