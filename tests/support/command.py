"""The command in the test's own process: for calls that start no run, where a process of its own promises nothing."""

from typer.testing import CliRunner

from stagepipe.cli.app import app


def call_here(*arguments: str):
    """Call `stagepipe` with the arguments; the result has `exit_code`, `stdout` and `stderr`."""
    return CliRunner().invoke(app, arguments)
