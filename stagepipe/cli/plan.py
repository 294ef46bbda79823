"""`stagepipe plan`, and the forecasts that it and `run` print and draw."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from stagepipe.cli.errors import exit_on_error
from stagepipe.core import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagepipe.api import Pipeline
    from stagepipe.forecast import Forecast
    from stagepipe.spec import PipelineSpec


_GRAPH_SUFFIXES: Final = (".svg", ".mmd")


def split_graph_paths(arguments: Sequence[str], *, graph: bool) -> tuple[list[str], list[Path]]:
    """Split a command's arguments into overrides and output files of graphs. Called before anything runs.

    >>> split_graph_paths(["seed=1", "a.svg"], graph=True)
    (['seed=1'], [PosixPath('a.svg')])

    Raises UsageError for a file that cannot be written as a graph.
    """
    if not graph:
        return list(arguments), []
    paths = [Path(argument) for argument in arguments if "=" not in argument]
    for path in paths:
        if path.suffix not in _GRAPH_SUFFIXES:
            message = f"--graph {path}: a graph needs a .svg or .mmd (Mermaid) file; name one"
            raise UsageError(message)
        if path.is_dir() or not path.parent.is_dir():
            message = (
                f"--graph {path}: this is a folder, or its parent folder does not exist; "
                "name a file in an existing folder"
            )
            raise UsageError(message)
    return [argument for argument in arguments if "=" in argument], paths


@contextmanager
def probing_status() -> Iterator[None]:
    """Show on a stderr terminal that stages are being probed, because it may take a while."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("probing: running the stages on the first few items"):
        yield


def print_auto_workers(pipeline: Pipeline) -> None:
    """Print the choices for `workers: auto` and `fuse: auto` on stderr, because a sink may use stdout."""
    settings = [setting for stage in pipeline.spec.stages for setting in (stage.workers, stage.fuse)]
    if "auto" in settings or any(sink.workers == "auto" for sink in pipeline.spec.sinks):
        with probing_status():
            auto_workers = pipeline.explain_auto_workers()
        for line in auto_workers:
            print(line, file=sys.stderr)


def print_cpu_warnings(spec: PipelineSpec) -> None:
    """Print on stderr which stages have more workers than this machine has CPUs."""
    from stagepipe.machine import detect_machine
    from stagepipe.plan import find_cpu_warnings

    for warning in find_cpu_warnings(spec, detect_machine().cpus):
        print(f"note: {warning}", file=sys.stderr)


def write_graph(forecast: Forecast, paths: Sequence[Path]) -> None:
    """Draw the graph to each path; without a path, print it as Mermaid text."""
    from stagepipe.forecast import render_mermaid, render_svg

    for path in paths:
        path.write_text(render_svg(forecast) if path.suffix == ".svg" else render_mermaid(forecast), encoding="utf-8")
    if not paths:
        sys.stdout.buffer.write(render_mermaid(forecast).encode())


def print_forecast(forecast: Forecast, *, as_json: bool) -> None:
    """Print the tables and the advice on stdout, or everything as JSON."""
    if as_json:
        from stagepipe.forecast import to_json

        sys.stdout.buffer.write(to_json(forecast))
        return
    from stagepipe.forecast import render_forecast
    from stagepipe.report import print_to_stdout

    print_to_stdout(render_forecast(forecast))


@exit_on_error()
def plan(
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Such as stages.decode.workers=8; with --graph also FILE.svg, FILE.mmd.")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON of the schema stagepipe.plan/2.")] = False,
    run_sink: Annotated[
        bool, typer.Option("--run-sink", help="Run the sink to measure it too, even if its output remains.")
    ] = False,
    graph: Annotated[
        bool, typer.Option("--graph", help="Draw a graph: as Mermaid text, or to each FILE.svg or FILE.mmd.")
    ] = False,
) -> None:
    """Run the stages on the first few items; print the cost of each hop and stage, and changes that make it faster.

    Exit status: 0 done, 1 a stage failed, 2 wrong config or call, 130 interrupted.
    """
    from stagepipe.api import Pipeline
    from stagepipe.plan import check_spec_limits

    config_overrides, graph_paths = split_graph_paths(overrides or [], graph=graph)
    pipeline = Pipeline(config, config_overrides)
    for warning in check_spec_limits(pipeline.spec):
        print(f"note: {warning}", file=sys.stderr)
    with probing_status():
        forecast = pipeline.forecast(run_sink=run_sink)
    if graph:
        write_graph(forecast, graph_paths)
    if json or not graph:
        print_forecast(forecast, as_json=json)
