"""Where other people's code is on this machine: checkouts, source distributions and the environments of their tools.

`STAGEPIPE_SOURCES` and `STAGEPIPE_ENVIRONMENTS` name the two folders. Nothing here downloads or builds anything: what
is missing is named with the command that gets it.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


class MissingSourceError(Exception):
    """Somebody else's code or tool is not on this machine; the message says how to get it."""


@dataclass(frozen=True)
class Origin:
    """A version of somebody else's code: `version` is that of a release, or a commit."""

    site: str
    name: str
    version: str

    @classmethod
    def github(cls, repository: str, commit: str) -> Origin:
        """A repository at a commit."""
        return cls("github.com", repository, commit)

    @classmethod
    def pypi(cls, project: str, version: str) -> Origin:
        """A source distribution."""
        return cls("pypi.org", project, version)

    @property
    def folder_name(self) -> str:
        """The name of its folder in `STAGEPIPE_SOURCES`.

        >>> Origin.github("pytorch/vision", "1a2b3c4d5e6f7").folder_name, Origin.pypi("timm", "1.0.31").folder_name
        ('pytorch+vision', 'timm-1.0.31')
        """
        return self.name.replace("/", "+") if self.site == "github.com" else f"{self.name}-{self.version}"

    @property
    def label(self) -> str:
        """What a table says of it.

        >>> Origin.github("pytorch/vision", "1a2b3c4d5e6f7").label
        'pytorch/vision 1a2b3c4'
        """
        is_commit = self.site == "github.com" and re.fullmatch("[0-9a-f]{7,40}", self.version)
        return f"{self.name} {self.version[:7] if is_commit else self.version}"


def find_source(origin: Origin, needed: str = "") -> Path:
    """Return the folder of that code, which has the file `needed`. Raise MissingSourceError, with what gets it."""
    folder = _find_folder("STAGEPIPE_SOURCES")
    found = folder / origin.folder_name
    if (found / needed).exists():
        return found
    if origin.site == "github.com":
        get = f"git clone https://github.com/{origin.name} {found} && git -C {found} checkout {origin.version}"
    else:
        requirement = f"{origin.name}=={origin.version}"
        get = f"pip download --no-deps --no-binary :all: {requirement}, and unpack it in {folder}"
    raise MissingSourceError(f"{found / needed} is missing; get it with: {get}")


def find_python(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of a tool's own environment. Raise MissingSourceError, with what makes it."""
    folder = _find_folder("STAGEPIPE_ENVIRONMENTS") / name
    python = folder / "bin" / "python"
    if not python.exists():
        get = f"python3 -m venv {folder} && {folder}/bin/pip install {' '.join(packages)}"
        raise MissingSourceError(f"{name} has no environment of its own; make it with: {get}")
    return python


def check_library(names: Sequence[str], get: str) -> None:
    """Raise MissingSourceError, with the command `get`, if no shared library of these names can be loaded."""
    for name in names:
        with suppress(OSError):
            ctypes.CDLL(name)
            return
    raise MissingSourceError(f"there is none of {', '.join(names)}; get it with: {get}")


def _find_folder(variable: str) -> Path:
    folder = os.environ.get(variable)
    if not folder:
        raise MissingSourceError(f"set {variable} to the folder where other people's code and tools are")
    return Path(folder).resolve()
