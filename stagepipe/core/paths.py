"""Where the package is installed. Used by every process that starts another one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

PACKAGE_DIR: Final = Path(sys.modules["stagepipe"].__path__[0])
"""The folder of the package. Its parent belongs on `PYTHONPATH`."""
