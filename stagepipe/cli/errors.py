"""Shows errors on the command line: a text on stderr and an exit status, no traceback. In the calling process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from stagepipe.cli.interrupts import InterruptedBySignal
from stagepipe.cli.standard_streams import explain_stdout_errors, print_to_stderr
from stagepipe.core import ConfigError, RunError, TargetError, UsageError

EXIT_RUN_FAILED: Final = 1
"""Exit status: the run failed."""

EXIT_USAGE_ERROR: Final = 2
"""Exit status: the config or the call is wrong."""

EXIT_INTERRUPTED: Final = 130
"""Exit status: interrupted, 128 + SIGINT as in shells. For another signal it is 128 + that signal's number."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print a command's error and exit with its status. Also works as a decorator."""
    try:
        with explain_stdout_errors():
            yield
    except ConfigError as error:
        print_to_stderr("\n".join(str(problem) for problem in error.problems))
        count = len(error.problems)
        print_to_stderr(f"{count} problem{'s' if count != 1 else ''}")
        raise typer.Exit(EXIT_USAGE_ERROR) from None
    except (UsageError, TargetError) as error:
        print_to_stderr(error)
        raise typer.Exit(EXIT_USAGE_ERROR) from None
    except RunError as error:
        print_to_stderr(f"{error.message}\n\n{error.trace.rstrip()}" if error.trace else error.message)
        raise typer.Exit(EXIT_RUN_FAILED) from None
    except InterruptedBySignal as interrupt:
        raise typer.Exit(128 + interrupt.signal_number) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
