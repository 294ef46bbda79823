"""The `stagepipe` command: mounts the commands. Each imports the layers below when it runs, so that help is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from stagepipe.cli.bench import bench
from stagepipe.cli.plan import plan
from stagepipe.cli.run import run
from stagepipe.cli.schema import schema
from stagepipe.cli.validate import validate
from stagepipe.core import VERSION

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Data preparation in stages, each in its own process, with every hop between them measured.",
)
app.command()(run)
app.command()(validate)
app.command()(plan)
app.command()(bench)
app.command()(schema)


def _version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


def main() -> None:
    """The entry point."""
    app()
