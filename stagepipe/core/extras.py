"""Imports the packages of an extra, or says how to install them. Runs in every process."""

from __future__ import annotations

import importlib
import re
import shlex
from types import ModuleType

from stagepipe.core.errors import UsageError
from stagepipe.core.version import DISTRIBUTION


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


_DISTRIBUTIONS = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "lance": "pylance",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "turbojpeg": "PyTurboJPEG",
    "yaml": "pyyaml",
}
"""Packages on the index whose modules have another name."""


def find_install_command(module: str) -> str:
    """Return the command that installs the package of a top-level module, in a version that stagepipe works with.

    >>> find_install_command("pyarrow"), find_install_command("cv2")
    ("pip install 'pyarrow>=15'", 'pip install opencv-python-headless')
    """
    from importlib import metadata  # as below

    package = _DISTRIBUTIONS.get(module, module)
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = []
    pattern = re.compile(rf"({re.escape(package)}(?![\w.-])[^;]*?)\s*(;.*)?")
    found = next((match[1] for text in requirements if (match := pattern.fullmatch(text))), package)
    return f"pip install {shlex.quote(found)}"


def install_command(extra: str, package: str = "") -> str:
    """Return the command that installs the packages of an extra, or only the one of them that is called `package`.

    >>> install_command("zarr")
    "pip install 'zarr>=3'"
    >>> install_command("table", "pyarrow")
    "pip install 'pyarrow>=15'"

    It names the packages themselves, so that it holds for each way of installing stagepipe.
    """
    from importlib import metadata  # slow, and only for a message

    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        requirements = []
    name = re.escape(package) if package else r"[\w.-]+"
    pattern = re.compile(rf"({name}(?![\w.-])[^;]*?)\s*;.*\bextra == ['\"]{extra}['\"]")
    packages = [match[1] for requirement in requirements if (match := pattern.fullmatch(requirement))]
    if not packages:
        return f"pip install -e '.[{extra}]' in a clone of the repository"
    return f"pip install {shlex.join(packages)}"
