"""Where the package is installed, and where it keeps what it has measured or made. Used by every process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

PACKAGE_DIR: Final = Path(sys.modules["stagepipe"].__path__[0])
"""The folder of the package. Its parent belongs on `PYTHONPATH`."""


def get_cache_dir() -> Path:
    """The user's cache folder for stagepipe. For a user without a home folder, a path that cannot be written."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "stagepipe"
    except RuntimeError:  # a container may run under a user id that has no home folder
        return Path("/nonexistent/stagepipe")
