"""Imports the package of an extra, or says how to install it. Runs in every process."""

from __future__ import annotations

import importlib
from types import ModuleType

from stagepipe.core.errors import UsageError


def import_extra(module: str, extra: str, needed_by: str) -> ModuleType:
    """Import `module`, which the extra `stagepipe[extra]` installs.

    >>> import_extra("json", "example", "the source `example`").__name__
    'json'

    Raises UsageError if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise UsageError(f"{needed_by} needs {package}: pip install 'stagepipe[{extra}]'") from error
