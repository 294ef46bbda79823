"""Names the right spelling of a wrong call: a file without a command, a key of the config as an option.

In the calling process. typer calls these classes; their base classes report every other wrong call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

from stagepipe.cli.errors import exit_on_error
from stagepipe.core import UsageError

_CONFIG_SUFFIXES: Final = (".yaml", ".yml")


class CommandGroup(TyperGroup):
    """The commands. A config in the place of a command gets the hint to run it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        if not ctx.resilient_parsing and Path(args[0]).suffix in _CONFIG_SUFFIXES and args[0] not in self.commands:
            with exit_on_error():
                raise UsageError(f"`{args[0]}` is not a command; did you mean `stagepipe run {' '.join(args)}`?")
        return super().resolve_command(ctx, args)


class ConfigCommand(TyperCommand):
    """A command on a config. An option that it lacks, but the config has, gets the hint to write an override."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command."""
        if ctx.resilient_parsing:  # a shell completes a call that is not finished
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
    """Return the value that follows an option: not another option, and not a config."""
    is_value = bool(rest) and not rest[0].startswith("-") and Path(rest[0]).suffix not in _CONFIG_SUFFIXES
    return rest[0] if is_value else "..."


def _refuse_config_key(option: str, value: str) -> None:
    """Raise UsageError with the override to write, if the config has a key of this name."""
    from stagepipe.config import find_option_key

    key = find_option_key(option.lstrip("-").replace("-", "_"))
    if key is None:
        return
    kind, addition = ("a stage", ", with the stage's name") if key.startswith("stages.") else ("the config", "")
    name = key.rpartition(".")[2]
    raise UsageError(f"no option `{option}`: `{name}` is a key of {kind}; write `{key}={value}`{addition}")
