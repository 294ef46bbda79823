"""The command line, one file a command. No logic lives here: a command reads its arguments and calls a layer below."""

from stagepipe.cli.app import main

__all__ = ["main"]
