"""Errors as the command line shows them: a text on stderr and an exit status, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from stagepipe.cli.interrupts import Interrupted
from stagepipe.core import ConfigError, RunError, UsageError
from stagepipe.core.targets import TargetError

FAILED: Final = 1
"""Exit status: the run failed."""

WRONG: Final = 2
"""Exit status: the config or the call is wrong."""

INTERRUPTED: Final = 130
"""Exit status: interrupted; 128 + SIGINT, as shells have it. Of another signal it is 128 + that one's number."""


@contextmanager
def reported() -> Iterator[None]:
    """Turn the errors of a command into its exit status; also a decorator."""
    try:
        yield
    except ConfigError as error:
        print("\n".join(str(problem) for problem in error.problems), file=sys.stderr)
        count = len(error.problems)
        print(f"{count} problem{'s' if count != 1 else ''}", file=sys.stderr)
        raise typer.Exit(WRONG) from None
    except (UsageError, TargetError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(WRONG) from None
    except RunError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(FAILED) from None
    except Interrupted as signal:
        raise typer.Exit(128 + signal.number) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
