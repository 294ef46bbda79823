"""The `stagepipe` command: mounts the commands. Each imports the layers below when it runs, so `--help` is fast."""

from __future__ import annotations

from typing import Annotated

import typer

from stagepipe.cli.bench import bench
from stagepipe.cli.built_ins import list_built_ins
from stagepipe.cli.calls import CommandGroup, ConfigCommand
from stagepipe.cli.doctor import doctor
from stagepipe.cli.init import init
from stagepipe.cli.plan import plan
from stagepipe.cli.report import report
from stagepipe.cli.run import run
from stagepipe.cli.schema import schema
from stagepipe.cli.standard_streams import open_standard_streams
from stagepipe.cli.top import top
from stagepipe.cli.validate import validate
from stagepipe.core import VERSION

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Data preparation in stages, each in its own process, with every hop between them measured.",
)
app.command()(init)
app.command(cls=ConfigCommand)(run)
app.command(cls=ConfigCommand)(validate)
app.command(cls=ConfigCommand)(plan)
app.command()(top)
app.command()(report)
app.command("list")(list_built_ins)
app.command()(doctor)
app.command()(bench)
app.command()(schema)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(VERSION)
        raise typer.Exit


@app.callback()
def _root_command(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; the entry point of the `stagepipe` script."""
    open_standard_streams()
    app()
