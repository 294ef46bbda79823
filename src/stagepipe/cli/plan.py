"""`stagepipe plan`: what will run, what each hop carries and how, and what would be better."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.outlooks import draw, files_among, probing, show
from stagepipe.cli.problems import reported


@reported()
def plan(
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Such as stages.decode.workers=8; with --graph also FILE.svg, FILE.mmd.")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON, of the schema stagepipe.plan/1.")] = False,
    graph: Annotated[
        bool, typer.Option("--graph", help="Draw it: Mermaid text, or a picture in each FILE.svg or FILE.mmd.")
    ] = False,
) -> None:
    """Run the stages on the first few items; say what each hop and stage costs, and what would make it faster.

    Exit status: 0, 1 a stage failed, 2 the config or the call is wrong, 130 interrupted.
    """
    from stagepipe.engine import Pipeline
    from stagepipe.plan.limits import refuse_what_cannot_run

    changes, files = files_among(overrides or [], graph=graph)
    pipeline = Pipeline(config, changes)
    for warning in refuse_what_cannot_run(pipeline.spec):
        print(f"note: {warning}", file=sys.stderr)
    with probing():
        outlook = pipeline.outlook()
    if graph:
        draw(outlook, files)
    if json or not graph:
        show(outlook, json=json)
