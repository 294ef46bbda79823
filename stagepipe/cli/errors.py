"""Shows errors on the command line: a text on stderr and an exit status, no traceback. In the calling process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from stagepipe.cli.interrupts import InterruptedBySignal
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
        yield
    except ConfigError as error:
        print("\n".join(str(problem) for problem in error.problems), file=sys.stderr)
        count = len(error.problems)
        print(f"{count} problem{'s' if count != 1 else ''}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE_ERROR) from None
    except (UsageError, TargetError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(EXIT_USAGE_ERROR) from None
    except RunError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(EXIT_RUN_FAILED) from None
    except InterruptedBySignal as interrupt:
        raise typer.Exit(128 + interrupt.signal_number) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
