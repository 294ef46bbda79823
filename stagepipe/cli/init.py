"""`stagepipe init`: writes a project to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from stagepipe.cli.errors import exit_on_error
from stagepipe.starters import StarterKind


@exit_on_error()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to write to; created if it is missing.")] = Path(),
    *,
    kind: Annotated[StarterKind, typer.Option(help="What the items are.")] = StarterKind.IMAGE,
    items: Annotated[int | None, typer.Option(min=1, help="How many items the data has. Default: by kind.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files that are there already.")] = False,
) -> None:
    """Write a pipeline to begin with: a config, its stages, a script that makes data, tests, and a schema for editors.

    It runs as it is, without data of your own and without a download. Exit status: 0, or 2 if a file is there already.
    """
    from stagepipe.starters import write_project

    project = write_project(folder, kind, items=items, force=force)
    print(f"wrote {', '.join(project.file_names)} to {project.folder.resolve()}\n\nNext:")
    lines = [
        *([(f"cd {shlex.quote(str(folder))}", "")] if folder.resolve() != Path.cwd() else []),
        *([(project.missing_command, "the stages need it")] if project.missing_command else []),
        ("python make_data.py", "small data in data/; leave it out if you have your own"),
        ("stagepipe validate pipeline.yaml", "checks the config, runs nothing"),
        ("stagepipe run pipeline.yaml", "prints a report, and draws runs/report.html"),
        ("python -m pytest", "the tests of the stages in my_ops.py, if you have pytest"),
    ]
    width = max(len(command) for command, _ in lines)
    for command, meaning in lines:
        print(f"  {command:{width}}  # {meaning}" if meaning else f"  {command}")
