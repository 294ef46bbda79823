"""The package: its version and name, its folder, its cache folder, and lazy interfaces of its folders.

The build reads the version from here (`tool.hatch.version` in pyproject.toml).
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

VERSION = "0.1.0"
DISTRIBUTION = "stagepipe-ml"
"""The name in pyproject.toml. Package and command are `stagepipe`, the name of another project on the index."""


PACKAGE_DIR: Final = Path(sys.modules["stagepipe"].__path__[0])
"""The folder of the package. Its parent belongs on `PYTHONPATH`."""


def get_cache_dir() -> Path:
    """The user's cache folder for stagepipe; a path that cannot be written if the user has no home folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "stagepipe"
    except RuntimeError:  # a container may run under a user id that has no home folder
        return Path("/nonexistent/stagepipe")


def lazy_names(package: str, file: str) -> Callable[[str], Any]:
    """A module `__getattr__` (PEP 562) for `package`, whose `__init__` is `file`.

    It imports a name at its first use. Type checkers see the names at once, under `if TYPE_CHECKING:` in that file.

    >>> import stagepipe.core
    >>> __getattr__ = lazy_names("stagepipe.core", stagepipe.core.__file__)
    >>> __getattr__("is_tensor")(3)
    False
    """

    @cache
    def read_modules() -> dict[str, str]:
        [block] = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If)]
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name not in read_modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(read_modules()[name]), name)

    return load
