"""`stagepipe validate`: checks a config without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.errors import exit_on_error


@exit_on_error()
def validate(
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Such as stages.decode.workers=8 vars.size=128.")
    ] = None,
) -> None:
    """Check a config and this machine's limits; report all mistakes at once, each with its place. Imports no target."""
    from stagepipe.config import find_spec_warnings, load, summarize_spec
    from stagepipe.plan import check_spec_limits

    spec = load(config, overrides or [])
    warnings = check_spec_limits(spec)
    print(f"ok: {spec.name}: {summarize_spec(spec)}")
    for warning in (*find_spec_warnings(spec), *warnings):
        print(f"note: {warning}")
