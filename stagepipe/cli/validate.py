"""`stagepipe validate`: checks a config without running it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.errors import EXIT_RUN_FAILED, exit_on_error


@exit_on_error()
def validate(
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Such as stages.decode.workers=8 vars.size=128.")
    ] = None,
    *,
    determinism: Annotated[
        bool, typer.Option("--determinism", help="Run the first 8 items 3 times; name the first stage that differs.")
    ] = False,
) -> None:
    """Check a config and this machine's limits; report all mistakes at once, each with its place. Imports no target.

    Exit status: 0 correct, 1 not deterministic or a stage failed, 2 wrong config or call, 130 interrupted.
    """
    from stagepipe.config import find_spec_warnings, load, summarize_spec
    from stagepipe.plan import check_spec_limits

    spec = load(config, overrides or [])
    warnings = check_spec_limits(spec)
    print(f"ok: {spec.name}: {summarize_spec(spec)}")
    for warning in (*find_spec_warnings(spec), *warnings):
        print(f"note: {warning}")
    if determinism:
        _check_determinism(config, overrides or [])


def _check_determinism(config: Path, overrides: list[str]) -> None:
    """Run the first items several times. Nothing is written, and the sink does not run."""
    from stagepipe.api import Pipeline

    difference = Pipeline(config, overrides).find_nondeterminism()
    if difference is not None:
        print(difference, file=sys.stderr)
        raise typer.Exit(EXIT_RUN_FAILED)
    print("ok: the first items are the same in 2 runs with 1 worker per stage and in 1 with 2")
