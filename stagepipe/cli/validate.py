"""`stagepipe validate` and `stagepipe schema`: check a config, and print the schema of configs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from stagepipe.cli.errors import EXIT_RUN_FAILED, exit_on_error
from stagepipe.core import ConfigError


@exit_on_error()
def validate(
    config: Annotated[Path, typer.Argument(help="The YAML file of a pipeline.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Such as stages.decode.workers=8 vars.size=128.")
    ] = None,
    *,
    imports: Annotated[
        bool, typer.Option("--import", help="Import all targets in a separate process, as workers would.")
    ] = False,
    determinism: Annotated[
        bool, typer.Option("--determinism", help="Run the first 8 items 3 times; name the first stage that differs.")
    ] = False,
) -> None:
    """Check a config and this machine's limits; report all mistakes at once, each with its place. Imports no target.

    A `note:` line names something that this machine lacks: a package, a GPU, memory. Exit status: 0 correct, 1 not
    deterministic or a stage failed, 2 wrong config or call, 130 interrupted.
    """
    from stagepipe.config import find_missing_packages, find_spec_warnings, load, summarize_spec
    from stagepipe.plan import check_spec_limits

    spec = load(config, overrides or [])
    warnings = [*check_spec_limits(spec), *find_missing_packages(spec)]
    if imports:
        _import_targets(config, overrides or [])
    print(f"ok: {spec.name}: {summarize_spec(spec)}")
    for warning in (*find_spec_warnings(spec), *warnings):
        print(f"note: {warning}")
    if determinism:
        _check_determinism(config, overrides or [])


_IMPORT_CODE: Final = """
import json, os, pathlib, sys, traceback
from stagepipe.core import import_target
with os.fdopen(os.dup(1), "wb") as answer:
    os.dup2(2, 1)  # what a module prints while it is imported, in C and in child processes too, is no answer
    sys.stdout = sys.stderr
    for path in sys.argv[2:]:
        error = ""
        try:
            import_target(path, pathlib.Path(sys.argv[1]))
        except BaseException as failure:
            cause = failure.__cause__ or failure
            error = "".join(traceback.format_exception_only(cause)).strip()
        answer.write(json.dumps(error).encode() + bytes([10]))
        answer.flush()
"""
"""The code of the `--import` process. It prints a line for each target, with its error or an empty text."""


def _import_targets(config: Path, overrides: list[str]) -> None:
    """Import the targets in a child process. Raises ConfigError with each failed target and its place."""
    from stagepipe.config import locate_targets

    targets = locate_targets(config, overrides)
    paths = list(dict.fromkeys(path for path, _ in targets))
    command = [sys.executable, "-P", "-c", _IMPORT_CODE, str(config.resolve().parent), *paths]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    errors = [json.loads(line) for line in ran.stdout.splitlines()]
    if len(errors) < len(paths):
        errors.append(f"the process that imported it ended with exit status {ran.returncode}")
    errors_by_path = {path: error for path, error in zip(paths, errors, strict=False) if error}
    problems = [
        location.make_problem(f"`{path}` cannot be imported: {errors_by_path[path]}")
        for path, location in targets
        if path in errors_by_path
    ]
    if problems:
        raise ConfigError(problems)


def _check_determinism(config: Path, overrides: list[str]) -> None:
    """Run the first items several times. Nothing is written, and the sink does not run."""
    from stagepipe.api import Pipeline

    difference = Pipeline(config, overrides).find_nondeterminism()
    if difference is not None:
        print(difference, file=sys.stderr)
        raise typer.Exit(EXIT_RUN_FAILED)
    print("ok: the first items are the same in 2 runs with 1 worker per stage and in 1 with 2")


@exit_on_error()
def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the schema to this file instead of printing it.")
    ] = None,
) -> None:
    """Print the JSON Schema of configs. Use it in a config's first line: # yaml-language-server: $schema=FILE."""
    from stagepipe.config import build_json_schema

    text = json.dumps(build_json_schema(), indent=2)
    if out is None:
        print(text)
    else:
        out.write_text(f"{text}\n", encoding="utf-8")
