"""`stagepipe plan`: what will run, what each hop carries and how, and what would be faster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.errors import exit_on_error
from stagepipe.cli.forecasts import print_forecast, probing_status, split_graph_paths, write_graph


@exit_on_error()
def plan(
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Such as stages.decode.workers=8; with --graph also FILE.svg, FILE.mmd.")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON of the schema stagepipe.plan/2.")] = False,
    run_sink: Annotated[
        bool, typer.Option("--run-sink", help="Run the sink even if what it writes stays, to measure it too.")
    ] = False,
    graph: Annotated[
        bool, typer.Option("--graph", help="Draw a graph: as Mermaid text, or to each FILE.svg or FILE.mmd.")
    ] = False,
) -> None:
    """Run the stages on the first few items; print what each hop and stage costs, and what would make it faster.

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
