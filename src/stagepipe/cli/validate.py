"""`stagepipe validate`: is this config right?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.problems import reported


@reported()
def validate(
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Such as stages.decode.workers=8 vars.size=128.")
    ] = None,
) -> None:
    """Check a config: every mistake at once, each at its place, and this machine's limits. Imports no target."""
    from stagepipe.config import load, outline, remarks
    from stagepipe.plan.limits import refuse_what_cannot_run

    spec = load(config, overrides or [])
    warnings = refuse_what_cannot_run(spec)
    print(f"ok: {spec.name}: {outline(spec)}")
    for remark in (*remarks(spec), *warnings):
        print(f"note: {remark}")
