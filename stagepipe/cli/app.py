"""The `stagepipe` command: mounts the commands. Each imports the layers below when it runs, so `--help` is fast."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer
from typer.core import TyperCommand

from stagepipe.cli.bench import bench
from stagepipe.cli.built_ins import list_built_ins
from stagepipe.cli.calls import CommandGroup, ConfigCommand
from stagepipe.cli.doctor import doctor
from stagepipe.cli.init import init
from stagepipe.cli.paragraphs import join_lines
from stagepipe.cli.plan import plan
from stagepipe.cli.report import report
from stagepipe.cli.run import run
from stagepipe.cli.schema import schema
from stagepipe.cli.standard_streams import open_standard_streams
from stagepipe.cli.top import top
from stagepipe.cli.tune import tune
from stagepipe.cli.validate import validate
from stagepipe.core import VERSION

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Data preparation in stages, each in its own process, with every hop between them measured.",
)


def _mount(command: Callable[..., None], name: str | None = None, cls: type[TyperCommand] | None = None) -> None:
    app.command(name, cls=cls, help=join_lines(inspect.getdoc(command) or ""))(command)


_mount(init)
_mount(run, cls=ConfigCommand)
_mount(validate, cls=ConfigCommand)
_mount(plan, cls=ConfigCommand)
_mount(tune, cls=ConfigCommand)
_mount(top)
_mount(report)
_mount(list_built_ins, "list")
_mount(doctor)
_mount(bench)
_mount(schema)


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
