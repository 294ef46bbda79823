"""The `stagepipe` command: mounts the commands. Each imports lower layers only when it runs, so `--help` is fast.

Wrong calls get a hint with the correct spelling: a file without a command, a key of the config as an option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from stagepipe.cli.built_ins import init, join_lines, list_built_ins
from stagepipe.cli.errors import exit_on_error, open_standard_streams
from stagepipe.cli.machine import bench, doctor
from stagepipe.cli.plan import plan
from stagepipe.cli.progress import top
from stagepipe.cli.report import report
from stagepipe.cli.run import run
from stagepipe.cli.tune import tune
from stagepipe.cli.validate import schema, validate
from stagepipe.core import VERSION, UsageError

_CONFIG_SUFFIXES: Final = (".yaml", ".yml")


class CommandGroup(TyperGroup):
    """The commands. A config in place of a command gets a hint to run it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        if not ctx.resilient_parsing and Path(args[0]).suffix in _CONFIG_SUFFIXES and args[0] not in self.commands:
            with exit_on_error():
                raise UsageError(f"`{args[0]}` is not a command; did you mean `stagepipe run {' '.join(args)}`?")
        return super().resolve_command(ctx, args)


class ConfigCommand(TyperCommand):
    """A command on a config. If an unknown option is a key of the config, the hint is to write an override."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command."""
        if ctx.resilient_parsing:  # a shell is completing an unfinished call
            return super().parse_args(ctx, args)
        known = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        for index, argument in enumerate(args):
            option, equals, value = argument.partition("=")
            if option.startswith("--") and option not in known:
                with exit_on_error():
                    _refuse_config_key(option, value if equals else _find_value(args[index + 1 :]))
        args = [_complete_resume(argument, args[index + 1 :]) for index, argument in enumerate(args)]
        return super().parse_args(ctx, args)


def _complete_resume(argument: str, rest: Sequence[str]) -> str:
    """Return `--resume=` for a `--resume` without a file: an option, a config, an override or nothing follows."""
    has_file = bool(rest) and not (
        rest[0].startswith("-") or "=" in rest[0] or Path(rest[0]).suffix in _CONFIG_SUFFIXES
    )
    return f"{argument}=" if argument == "--resume" and not has_file else argument


def _find_value(rest: Sequence[str]) -> str:
    """Return the value after an option, or "..." if another option, a config or nothing follows."""
    is_value = bool(rest) and not rest[0].startswith("-") and Path(rest[0]).suffix not in _CONFIG_SUFFIXES
    return rest[0] if is_value else "..."


def _refuse_config_key(option: str, value: str) -> None:
    """Raise UsageError with the correct override, if the config has a key of this name."""
    from stagepipe.config import find_option_key

    key = find_option_key(option.lstrip("-").replace("-", "_"))
    if key is None:
        return
    kind, addition = ("a stage", ", with the stage's name") if key.startswith("stages.") else ("the config", "")
    name = key.rpartition(".")[2]
    raise UsageError(f"no option `{option}`: `{name}` is a key of {kind}; write `{key}={value}`{addition}")


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
