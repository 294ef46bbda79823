"""Imports the packages of an extra, or says how to install them. Runs in every process."""

from __future__ import annotations

import importlib
import re
import shlex
from types import ModuleType

from stagepipe.core.errors import UsageError


def import_extra(module: str, extra: str, needed_by: str) -> ModuleType:
    """Import `module`, a package of the extra `extra`.

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
        raise UsageError(f"{needed_by} needs {package}: {install_command(extra)}") from error


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    >>> install_command("zarr")
    "pip install 'zarr>=3'"

    It names the packages, because on the Python Package Index another project has the name stagepipe.
    """
    from importlib import metadata  # slow, and only for a message

    try:
        requirements = metadata.requires("stagepipe") or []
    except metadata.PackageNotFoundError:
        requirements = []
    pattern = re.compile(rf"(.+?)\s*;\s*extra == ['\"]{extra}['\"]")
    packages = [match[1] for requirement in requirements if (match := pattern.fullmatch(requirement))]
    if not packages:
        return f"pip install -e '.[{extra}]' in stagepipe's repository"
    return f"pip install {shlex.join(packages)}"
